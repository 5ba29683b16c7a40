"""The disk queues that Go's nsqd has left: metadata and files of records, damaged anywhere.

The input is the metadata, then `||`, then the files with `||` between them. Reading on from any place gives
the same as reading through.
"""

from __future__ import annotations

from pathlib import Path

from nsquark.diskqueue import Place, QueuedMessage, QueueReader, Unreadable, find_queues
from reliability.fuzz.target import Target, Wrong, folder, require_same
from tests.diskqueue.queues import record

SEPARATOR = b"||"
MOST_RESUMED = 8


Found = list[tuple[Place, QueuedMessage]]
Told = list[tuple[str, Unreadable]]


def _read(path: Path, limit: int, place: Place | None = None) -> tuple[Found, Told]:
    """Every message with its place, and what did not read."""
    (files,) = find_queues(path)
    told: Told = []

    def tell(file: Path, each: Unreadable) -> None:
        told.append((file.name, each))

    reader = QueueReader(files, limit, tell, place)
    found: Found = []
    while reader.head is not None:
        found.append((reader.place, reader.head))
        if reader.bytes_left < 0:
            raise Wrong("fewer than no bytes are left")
        reader.advance()
    reader.close()
    return found, told


def run(data: bytes) -> object:
    meta, *contents = data.split(SEPARATOR)
    with folder() as path:
        (path / "t.diskqueue.meta.dat").write_bytes(meta)
        for number, content in enumerate(contents[:3]):
            (path / f"t.diskqueue.{number:06d}.dat").write_bytes(content)
        (files,) = find_queues(path)
        if files.unread_bytes() < 0 or files.missing() < 0:
            raise Wrong(f"{files.unread_bytes()} bytes unread, {files.missing()} files missing")
        found, told = _read(path, 1000)
        require_same("read again", (found, told), _read(path, 1000))
        for index, (place, _) in enumerate(found[:MOST_RESUMED]):
            require_same(f"read on from {place}", found[index:], _read(path, 1000, place)[0])
        total = sum(len(message.body) + 30 for _, message in found)
        lost = sum(each.length for _, each in told)
        if total + lost > sum(map(len, contents)):
            raise Wrong(f"{total} bytes of messages and {lost} that do not read, in fewer bytes")
        if total + lost < files.unread_bytes():
            raise Wrong(f"{files.unread_bytes() - total - lost} bytes are neither messages nor told of")
        return found, told, files.missing()


def seeds() -> list[bytes]:
    records = [record(number, b"body %d" % number * (number % 3 + 1)) for number in range(8)]
    files = [b"".join(records[:4]), b"".join(records[4:])]
    meta = b"8\n0,0\n1,%d\n" % len(files[1])
    return [
        SEPARATOR.join([meta, *files]),
        SEPARATOR.join([b"6\n0,%d\n1,%d\n" % (len(records[0] + records[1]), len(files[1])), *files]),
        SEPARATOR.join([meta, files[0], files[1][:-5]]),
        SEPARATOR.join([meta, files[0][:50] + bytes(9) + files[0][60:], files[1]]),
        SEPARATOR.join([b"garbage", *files]),
        SEPARATOR.join([b"1\n0,0\n0,40\n", record(1, timestamp=1_700_000_000) + bytes(100)]),
        SEPARATOR.join([b"0\n5,0\n2,0\n", *files]),
        meta,
    ]


TARGET = Target(
    name="diskqueues",
    run=run,
    seeds=seeds,
    modules=("nsquark.diskqueue.records", "nsquark.diskqueue.queue_reader", "nsquark.diskqueue.files"),
    words=(
        SEPARATOR,
        record(3, b"w"),
        record(4, b"v")[:14],
        b"\0\0\0\x1a",
        b"\0\0\0\x19",
        b"\n0,0\n",
        bytes(40),
    ),
    max_length=1200,
)
