"""Reading a journal whose file is damaged: every whole block is applied, twice the same, nothing raises."""

from __future__ import annotations

import struct
from pathlib import Path

from nsquark import kernel
from nsquark.errors import UnknownVersion
from nsquark.kernel.pure import BLOCK
from nsquark.log import Journal, JournalState
from nsquark.log.journal.records import (
    CREATE,
    DEFER,
    DELETE,
    EPOCH,
    MAGIC,
    MOVE,
    MOVES,
    PUMP,
    REQUEUE,
    SNAPSHOT,
)
from nsquark.log.journal.records import FINISH as RANGE
from reliability.fuzz.target import Target, folder, require_same

MOST = 100_000  # messages of one record: each of those that wait is an entry in memory


def _told(state: JournalState) -> object:
    channels = [
        (
            name,
            each.number,
            each.position,
            list(each.passed),
            sorted(each.waiting.items()),
            each.moves,
            list(each.emptied),
        )
        for name, each in sorted(state.channels.items())
    ]
    return channels, state.deferred, state.pumped, state.epoch, state.in_snapshot


def _open(path: Path) -> tuple[object, ...]:
    journal = Journal(path)
    told = _told(journal.state)
    for channel in journal.state.channels.values():
        channel.settle(1000)  # the end of the log
    settled = _told(journal.state)
    told_damage = sorted((each.file, each.damage) for each in journal.records)
    torn = [(each.name, size) for each, size in journal.torn]
    journal.close(sync=False)
    return told, settled, journal.damaged, told_damage, torn


def _leading(data: bytes) -> tuple[JournalState, int]:
    """The state that the whole blocks at the beginning make, and where they end."""
    state, at = JournalState(), 0
    while len(data) - at >= BLOCK.size:
        magic, crc, length = BLOCK.unpack_from(data, at)
        end = at + BLOCK.size + length
        if magic != MAGIC or end > len(data) or kernel.crc32c(data, at + 8, end) != crc:
            break
        if state.apply(memoryview(data)[at + BLOCK.size : end]):
            break
        at = end
    return state, at


def _has_giants(data: bytes) -> bool:
    """Whether a record with a right checksum speaks of more messages than a log of this size could have."""
    at = -1
    while (at := data.find(b"R", at + 1)) >= 0:
        if at + REQUEUE.size <= len(data) and REQUEUE.unpack_from(data, at)[3] > MOST:
            return True
    return False


def run(data: bytes) -> object:
    if _has_giants(data):
        return "too large"
    with folder() as parent:
        path = parent / "topic"
        path.mkdir()
        file = path / "journal.000001"
        file.write_bytes(data)
        try:
            first = _open(path)
        except UnknownVersion as error:
            require_same("the file of another version", data, file.read_bytes())
            return str(error).replace(str(parent), "")
        names = sorted(each.name for each in path.iterdir())
        require_same("opened again", first, _open(path))
        require_same("the files", names, sorted(each.name for each in path.iterdir()))
        state, end = _leading(data)
        if MAGIC not in data[end:] and end and not state.in_snapshot:
            require_same("the whole blocks", _told(state), first[0])
        return first


def repair(data: bytes) -> bytes:
    """Give every block the checksum of its bytes, and end the last one with the file."""
    out, at = bytearray(data), 0
    while (at := out.find(MAGIC, at)) >= 0 and at + BLOCK.size <= len(out):
        length = int.from_bytes(out[at + 8 : at + 12], "big")
        following = out.find(MAGIC, at + 4)
        end = following if following >= at + BLOCK.size else len(out)
        if at + BLOCK.size + length != end and length % 3:  # not always: a wrong length is damage as well
            length = end - at - BLOCK.size
            out[at + 8 : at + 12] = length.to_bytes(4, "big")
        if at + BLOCK.size + length <= len(out):
            crc = kernel.crc32c(bytes(out), at + 8, at + BLOCK.size + length)
            out[at + 4 : at + 8] = crc.to_bytes(4, "big")
        at += 4
    return bytes(out)


def _block(*records: bytes) -> bytes:
    body = b"".join(records)
    checked = struct.pack(">I", len(body)) + body
    return MAGIC + kernel.crc32c(checked, 0, len(checked)).to_bytes(4, "big") + checked


def seeds() -> list[bytes]:
    create = CREATE.pack(b"C", 1, 5, 2) + b"ch"
    finish = RANGE.pack(b"F", 1, 5, 3)
    requeue = REQUEUE.pack(b"R", 1, 9, 2, 3, 1_700_000_000_000_000_000)
    rest = [
        MOVE.pack(b"M", 1, 7),
        MOVES.pack(b"N", 1, 2),
        RANGE.pack(b"X", 1, 20, 4),
        DEFER.pack(b"Q", 30, 1, 99),
        PUMP.pack(b"P", 40),
        EPOCH.pack(b"E", 77),
        DELETE.pack(b"D", 1),
    ]
    begin, end = SNAPSHOT.pack(b"S", 1), SNAPSHOT.pack(b"S", 0)
    return [
        _block(create) + _block(finish) + _block(requeue),
        _block(create, finish, requeue, *rest[:-1]),
        _block(begin, create) + _block(finish) + _block(end) + _block(requeue),
        _block(create) + _block(*rest),
        _block(create) + _block(finish)[:-2],
        _block(create) + bytes(20) + _block(finish, requeue),
        _block(begin, create) + _block(finish),
        _block(b"Z?"),
        b"NQJ2" + bytes(30),
    ]


TARGET = Target(
    name="journals",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.log.journal.inspection",
        "nsquark.log.journal.journal",
        "nsquark.log.journal.state",
        "nsquark.log.ranges",
    ),
    words=(
        MAGIC,
        _block(RANGE.pack(b"F", 1, 30, 3)),
        RANGE.pack(b"F", 1, 6, 2),
        RANGE.pack(b"X", 1, 6, 2),
        b"\xff\xff\xff\xff",
    ),
    repair=repair,
    max_length=600,
)
