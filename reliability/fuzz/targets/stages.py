"""The file of a stage that another process has left: recovered up to its last whole record, and once."""

from __future__ import annotations

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.names import parse_name
from nsquark.nsqd.staged import stage_file
from nsquark.nsqd.staged.stage_file import HEADER, MAGIC, Contents
from reliability.fuzz.target import Target, Wrong, folder, require_same


def _leading(data: bytes) -> tuple[int, int]:
    """How many whole records the file begins with, and where they end."""
    count = at = 0
    while len(data) - at >= HEADER.size:
        magic, crc, length, _, _, name = HEADER.unpack_from(data, at)
        if magic != MAGIC or not HEADER.size + name + 4 <= length <= len(data) - at:
            break
        if kernel.crc32c(data, at + 8, at + length) != crc:
            break
        if parse_name(data[at + HEADER.size : at + HEADER.size + name]) is None:
            break
        at += length
        count += 1
    return count, at


def run(data: bytes) -> object:
    with folder() as path:
        batch = path / "17"
        batch.mkdir()
        file = batch / "0.c0ffee"
        file.write_bytes(data)
        try:
            stage_file.check_version(file)
        except UnknownVersion as error:
            return str(error).replace(str(path), "")
        first = stage_file.recover(file, path / "17.0.c0ffee")
        count, size = _leading(data)
        require_same("the whole records", (count, size), (first.records, first.size))
        require_same("what is left", data[:size], file.read_bytes())
        if first.damage is not None:
            require_same("what is kept aside", data[size:], first.damage.path.read_bytes())
        again = stage_file.recover(file, path / "17.0.c0ffee")
        require_same("recovered again", first._replace(cut=0, damage=None), again)
        offset = found = 0
        while offset < size:
            records, offset = stage_file.read(file, offset, size, 100)
            found += len(records)
        if found != count:
            raise Wrong(f"{found} of {count} records are read")
        stage_file.rewrite(file)
        require_same("written again", data[:size], file.read_bytes())
        return _told(first)


def _told(contents: Contents) -> object:
    return contents._replace(damage=None), contents.damage is not None


def repair(data: bytes) -> bytes:
    out, at = bytearray(data), 0
    while (at := out.find(MAGIC, at)) >= 0 and at + HEADER.size <= len(out):
        length = int.from_bytes(out[at + 8 : at + 12], "big")
        if HEADER.size <= length <= len(out) - at:
            out[at + 4 : at + 8] = kernel.crc32c(bytes(out), at + 8, at + length).to_bytes(4, "big")
        at += 4
    return bytes(out)


def _record(topic: str, count: int, defer_ms: int = 0) -> bytes:
    body = count.to_bytes(4, "big") + b"\0\0\0\2hi" * count
    return stage_file.pack_head(topic, count, defer_ms, body) + body


def seeds() -> list[bytes]:
    whole = _record("t", 2) + _record("u", 1, 1000) + _record("t", 3)
    return [
        whole,
        whole[:-3],
        whole[:20] + b"\0" + whole[21:],
        whole[:70] + bytes(30) + whole[100:],
        b"NQS2" + bytes(40),
        bytes(100),
        whole + MAGIC,
    ]


TARGET = Target(
    name="stages",
    run=run,
    seeds=seeds,
    modules=("nsquark.nsqd.staged.stage_file",),
    words=(MAGIC, _record("w", 1), b"\0\0\0\x19", b"\xff\xff\xff\xff", b"\x80"),
    repair=repair,
    max_length=1000,
)
