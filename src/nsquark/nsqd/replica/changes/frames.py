"""The bytes between a primary and its followers, without a socket.

    frame: the changes of one turn, or none (a heartbeat)
    0        4        8        12       16         24
    | NQF1   | u32    | u32    | u32    | u64      | ...
    | magic  | crc    | length | term   | sequence | operations     crc of everything behind it but batches

    operation
    | u8     | u16 + bytes | u64    | u32 + bytes
    | letter | path        | offset | data

    answer: everything up to these sequences is written, and on the disk
    | NQA1   | u32 term | u64 written | u64 synced

| letter | means |
|---|---|
| `A` | append whole batches to a segment at the offset; they have CRCs of their own |
| `a` | append to any file at the offset |
| `P` | put a small file: it has the old content or the new one |
| `C` | create an empty file |
| `T` | cut a file to the offset |
| `R` | rename; the data are the new path |
| `D` | delete a file, or a folder with all that is in it |
| `H` | no change: the primary has resigned, alone in a frame without a new sequence, with an empty path |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from nsquark import kernel
from nsquark.errors import NsquarkError

MAGIC, ANSWER_MAGIC = b"NQF1", b"NQA1"
HEAD = struct.Struct(">4sIIIQ")
HEAD_SIZE = HEAD.size
ANSWER = struct.Struct(">4sIQQ")
ANSWER_SIZE = ANSWER.size
_REST_OF_HEAD = struct.Struct(">IIQ")  # what the CRC covers of it
_PATH = struct.Struct(">cH")
_DATA = struct.Struct(">QI")
BATCHES, APPEND, PUT, CREATE, CUT, RENAME, DELETE = b"A", b"a", b"P", b"C", b"T", b"R", b"D"
HANDOVER = b"H"
_BATCHES = BATCHES[0]
LETTERS = frozenset((BATCHES, APPEND, PUT, CREATE, CUT, RENAME, DELETE, HANDOVER))
MAX_FRAME = 128 << 20  # bytes: the largest frame that a follower takes
MAX_SEQUENCE = (1 << 63) - 1
MAX_PIECE = 16 << 20  # bytes of an append that go into one operation
PATH_SIZE, DATA_SIZE = _PATH.size, _DATA.size
_TOP = ("topics", "staged")
_FILES = ("nsqd.dat", "nsquark.dat")
_NOT_COPIED = (".doubt", ".tmp")


Data: TypeAlias = bytes | bytearray | memoryview
PackedOperation: TypeAlias = tuple[bytes, Data]  # everything before the data, and the data


class BadFrame(NsquarkError):
    """The other side sent what no nsqd sends."""


@dataclass
class Operation:
    letter: bytes
    path: str
    offset: int = 0
    data: Data = b""


@dataclass
class Frame:
    term: int
    sequence: int
    operations: list[Operation]


def is_copied(path: str) -> bool:
    """Whether a file of this path, relative to the data directory, belongs to the copy."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or path.endswith(_NOT_COPIED):
        return False
    return path in _FILES or (len(parts) > 1 and parts[0] in _TOP)


class PackedFrame:
    """A frame in pieces that follow each other, so that what was written is not copied."""

    __slots__ = ("parts", "sequence", "size")

    def __init__(self, term: int, sequence: int, operations: list[PackedOperation]) -> None:
        size = HEAD.size
        parts: list[Data] = [b""]
        checked: list[Data] = [b""]
        for head, data in operations:
            parts.append(head)
            parts.append(data)
            checked.append(head)
            if head[0] != _BATCHES:
                checked.append(data)
            size += len(head) + len(data)
        checked[0] = _REST_OF_HEAD.pack(size, term, sequence)
        parts[0] = HEAD.pack(MAGIC, _crc(checked), size, term, sequence)
        self.parts = parts
        self.sequence = sequence
        self.size = size


def pack_path(letter: bytes, path: str) -> bytes:
    """The beginning of an operation, which is the same for all of its kind on this file."""
    name = path.encode()
    return _PATH.pack(letter, len(name)) + name


def pack_operation(path: bytes, offset: int, data: Data) -> PackedOperation:
    """An operation that begins with what `pack_path` has packed."""
    return path + _DATA.pack(offset, len(data)), data


def pack_frame(term: int, sequence: int, operations: Iterable[Operation]) -> bytes:
    packed = [
        pack_operation(pack_path(each.letter, each.path), each.offset, each.data) for each in operations
    ]
    return b"".join(PackedFrame(term, sequence, packed).parts)


def _crc(parts: list[Data]) -> int:
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return kernel.crc32c(data, 0, len(data))


class FrameParser:
    """Feed it what arrives, and take whole frames. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Data) -> list[Frame]:
        """The frames that are whole by now; what they hold may lie in `data`.

        Raises BadFrame if one of them is none; nothing may be fed then any more.
        """
        found: list[Frame] = []
        if self._buffer:
            self._buffer += data
            if self._missing() > 0:
                return found
            data = self._buffer
            self._buffer = bytearray()
        view = memoryview(data)
        at, end = 0, len(view)
        while end - at >= HEAD_SIZE:
            magic, crc, length, term, sequence = HEAD.unpack_from(view, at)
            if magic != MAGIC or not HEAD_SIZE <= length <= MAX_FRAME or sequence > MAX_SEQUENCE:
                raise BadFrame(f"no frame begins with {bytes(view[at : at + 12])!r}")
            if end - at < length:
                break
            operations, counted = operations_of(view, at + HEAD_SIZE, at + length)
            if counted != crc:
                raise BadFrame(f"the CRC of frame {sequence} is wrong")
            at += length
            found.append(Frame(term, sequence, operations))
        if at < end:
            self._buffer += view[at:]
        return found

    def _missing(self) -> int:
        """How many bytes the frame lacks that has come in part; 0 or less if it may be whole, or no frame."""
        if len(self._buffer) < HEAD.size:
            return 0
        magic, _, length, _, sequence = HEAD.unpack_from(self._buffer)
        if magic != MAGIC or length > MAX_FRAME or sequence > MAX_SEQUENCE:
            return 0
        return int(length) - len(self._buffer)


def operations_of(frame: memoryview, at: int, end: int) -> tuple[list[Operation], int]:
    """The operations of a frame, and the CRC that it should have."""
    found: list[Operation] = []
    checked: list[Data] = []
    since = at - _REST_OF_HEAD.size  # what is covered by the CRC, from here on
    while at < end:
        begin = at
        try:
            letter, size = _PATH.unpack_from(frame, at)
            at += PATH_SIZE
            offset, length = _DATA.unpack_from(frame, at + size)
        except struct.error as error:
            raise BadFrame(f"an operation is cut short: {error}") from None
        path = _target(letter, bytes(frame[at : at + size]))
        at += size + DATA_SIZE
        if path is None or at + length > end:
            raise BadFrame(f"no operation: {letter!r} on {bytes(frame[begin:at])!r}, {length} bytes")
        data: Data = frame[at : at + length]
        if letter == BATCHES:
            checked.append(frame[since:at])
            since = at + length
        else:
            data = bytes(data)
        at += length
        found.append(Operation(letter, path, offset, data))
    if since < end:
        checked.append(frame[since:end])
    return found, _crc(checked)


@lru_cache(4096)
def _target(letter: bytes, name: bytes) -> str | None:
    """The path that an operation is for; None if no nsqd sends it."""
    try:
        path = name.decode()
    except UnicodeDecodeError:
        return None
    return path if letter in LETTERS and (letter == HANDOVER or is_copied(path)) else None


def parse_answer(data: Data) -> tuple[int, int, int]:
    """The answer that begins here: term, written, synced. Raises BadFrame."""
    magic, term, written, synced = ANSWER.unpack_from(data)
    if magic != ANSWER_MAGIC or synced > written:
        raise BadFrame(f"no answer: {bytes(data[:ANSWER_SIZE])!r}")
    return term, written, synced


def parse_answers(buffer: bytearray) -> tuple[int, int, int] | None:
    """Take all whole answers off the buffer; returns the last. Raises BadFrame."""
    last = None
    while len(buffer) >= ANSWER_SIZE:
        last = parse_answer(buffer)
        del buffer[:ANSWER_SIZE]
    return last


def pack_answer(term: int, written: int, synced: int) -> bytes:
    return ANSWER.pack(ANSWER_MAGIC, term, written, synced)
