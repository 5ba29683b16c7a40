"""The file of one stage: the records of one attempt at one partition, in the order in which they were put.

    0       4      8        12      16         24
    | NQS1  | u32  | u32    | u32   | u64      | u8 + bytes | ...
    | magic | crc  | length | count | defer ms | topic      | MPUB body: i32 count; i32 size and body of each

`crc` is the CRC-32C of everything behind it, `length` that of the whole record. Appending happens on the
event loop, like every publish; reading and checking are for a thread.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import NamedTuple

from nsquark import changes, kernel
from nsquark.errors import NsquarkError, UnknownVersion
from nsquark.log import Damage, keep
from nsquark.log import Record as KeptAside
from nsquark.names import parse_name

MAGIC = b"NQS1"
HEADER = struct.Struct(">4sIIIQB")
_CHECKED = struct.Struct(">IIQB")  # of the header, what the CRC covers
_CRC_AT, _LENGTH_AT = 4, 8


class BadStage(NsquarkError):
    """The file does not read as it was written."""


class Record(NamedTuple):
    """Messages for one topic, as they were put. The MPUB body begins at `start` of `data`."""

    topic: str
    messages: int
    defer_ms: int
    data: bytes
    start: int


class Contents(NamedTuple):
    """The content of a file up to its last whole record."""

    size: int
    records: int
    topics: dict[str, int]  # messages
    cut: int = 0  # bytes behind that, which were cut off
    damage: KeptAside | None = None  # if there were whole records among them


def check_version(path: Path) -> None:
    """Raises UnknownVersion if the file begins with a record of another version."""
    with open(path, "rb", buffering=0) as file:
        magic = file.read(len(MAGIC))
    if magic[:3] == MAGIC[:3] and magic[3:].isdigit() and magic != MAGIC:
        raise UnknownVersion(str(path), f"has a record of format {magic.decode('ascii')}")


def pack_head(topic: str, count: int, defer_ms: int, body: bytes) -> bytes:
    """The part of a record before its MPUB body."""
    name = topic.encode("ascii")
    length = HEADER.size + len(name) + len(body)
    checked = _CHECKED.pack(length, count, defer_ms, len(name)) + name
    return MAGIC + kernel.crc32c(checked + body, 0, len(checked) + len(body)).to_bytes(4, "big") + checked


def append(path: Path, size: int, head: bytes, body: bytes) -> int:
    """Add a record to a file that has `size` bytes; returns how many it has then.

    Raises OSError, and the file is as it was, or what is behind `size` is not a whole record.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(head + body) if len(body) < 1 << 16 else None
        try:
            if rest is None:
                done = os.writev(fd, (head, body))
                rest = memoryview(body)[max(0, done - len(head)) :]
                if done < len(head):
                    raise OSError("the disk took less than a header")
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)
    if changes.listeners:
        changes.tell_appended(path, size, head + body)
    return size + len(head) + len(body)


def read(path: Path, offset: int, size: int, at_most: int) -> tuple[list[Record], int]:
    """The records from `offset` on, whole and checked: `at_most` bytes, or one that is larger.

    Returns them and where the next begins. Raises BadStage at one that is not whole, and OSError.
    """
    with open(path, "rb", buffering=0) as file:
        data = os.pread(file.fileno(), min(at_most, size - offset), offset)
        if len(data) >= HEADER.size:
            needed = _length(data, 0)
            if needed > len(data):
                data = os.pread(file.fileno(), min(needed, size - offset), offset)
    records: list[Record] = []
    at = 0
    while len(data) - at >= HEADER.size:
        length = _length(data, at)
        if length > len(data) - at:
            break
        records.append(_parse(data, at, length))
        at += length
    if not records:
        raise BadStage(f"{path}: no whole record at {offset}")
    return records, offset + at


def _length(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + _LENGTH_AT : at + _LENGTH_AT + 4], "big")


def _parse(data: bytes, at: int, length: int) -> Record:
    magic, crc, _, count, defer_ms, name_length = HEADER.unpack_from(data, at)
    start = at + HEADER.size + name_length
    if (
        magic != MAGIC
        or length < HEADER.size + name_length + 4
        or kernel.crc32c(data, at + _LENGTH_AT, at + length) != crc
    ):
        raise BadStage(f"a record at {at} is broken")
    topic = parse_name(data[at + HEADER.size : start])
    if topic is None:
        raise BadStage(f"a record at {at} is for no topic")
    return Record(topic, count, defer_ms, data, start)


def recover(path: Path, aside: Path) -> Contents:
    """Read a file of an earlier process, and cut off the rest after its last whole record. Raises OSError.

    A stage counts as a whole or not at all, so nothing behind a broken record is of use. But where there is
    something whole, it was not a torn write: then the rest is kept, called after `aside`.
    """
    size = os.stat(path).st_size
    offset = records = 0
    topics: dict[str, int] = {}
    while offset < size:
        try:
            found, offset = read(path, offset, size, 1 << 20)
        except BadStage:
            # Perhaps records before the broken one came with it: look at them one by one.
            try:
                found, offset = read(path, offset, size, HEADER.size)
            except BadStage:
                break
        records += len(found)
        for record in found:
            topics[record.topic] = topics.get(record.topic, 0) + record.messages
    if offset == size:
        return Contents(offset, records, topics)
    kept = keep(path, Damage(offset, size - offset), aside)[0] if _goes_on(path, offset, size) else None
    os.truncate(path, offset)
    changes.tell_cut(path, offset)
    return Contents(offset, records, topics, size - offset, kept)


def _goes_on(path: Path, offset: int, size: int) -> bool:
    """Whether there is a whole record behind the broken one."""
    with open(path, "rb", buffering=0) as file:
        data = os.pread(file.fileno(), size - offset, offset)
    at = 0
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if len(data) - at >= HEADER.size:
            length = _length(data, at)
            try:
                if HEADER.size <= length <= len(data) - at:
                    _parse(data, at, length)
                    return True
            except BadStage:
                pass
    return False


def rewrite(path: Path) -> None:
    """Write a file again whose fsync has failed: no other fsync of it would say anything (`log.syncing`).

    Raises OSError, also if the kernel has dropped what it could not write.
    """
    copy = path.with_name(f".new.{path.name}")  # which no stage is called
    size, offset = os.stat(path).st_size, 0
    try:
        with open(copy, "wb") as file:
            while offset < size:
                records, following = read(path, offset, size, 1 << 20)
                file.write(memoryview(records[0].data)[: following - offset])
                offset = following
            file.flush()
            os.fsync(file.fileno())
        os.rename(copy, path)
    except BadStage as error:
        copy.unlink(missing_ok=True)
        raise OSError(errno.EIO, str(error)) from None
    except OSError:
        copy.unlink(missing_ok=True)
        raise
