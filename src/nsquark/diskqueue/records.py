"""The records of one file of a disk queue, and how to go on where a record does not read.

    0        4            12         14           30
    | i32    | i64        | u16      | 16 ASCII   | ...
    | length | time, ns   | attempts | message id | body        length = 26 + length of the body

Nothing guards a record: no magic, no checksum. A record counts as whole if its length is possible and leads
to the end of the file, or to another length that is possible. Where that fails, `MessageFinder` searches for
the next place that looks like a message: a possible length, a time of this century, an id in hex. It believes
such a place only if whole messages go on from there (see `_believable`).
"""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

RECORD = struct.Struct(">iqH16s")
_LENGTH = struct.Struct(">i")
LEAST = RECORD.size - _LENGTH.size
WINDOW = 1 << 20
_STEPS = 200_000  # records that a search looks at, at most, to find out whether it may believe a place
_ENOUGH = 3  # records in a row, to believe a place from which the file is not whole to its end
_SECONDS = 10**11  # nsqd before 0.2.22 wrote seconds; a time in ns is larger
_EARLIEST, _LATEST = 0x12 << 56, 0x3A << 56  # ns since the epoch: the years 2011 and 2102, about
_MESSAGE = re.compile(rb"(?=[\x00-\x0f].{3}[\x12-\x39].{7}.{2}[0-9a-f]{16})", re.DOTALL)
_HEX = re.compile(rb"[0-9a-f]{16}")


class QueuedMessage(NamedTuple):
    timestamp_ns: int
    attempts: int  # deliveries so far
    id: bytes
    body: bytes


class Unreadable(NamedTuple):
    """Bytes of a file that are no message. `torn`: a message whose writing a crash has cut off, or zeros."""

    offset: int
    length: int
    torn: bool


def pack_record(message: QueuedMessage) -> bytes:
    length = LEAST + len(message.body)
    return RECORD.pack(length, message.timestamp_ns, message.attempts, message.id) + message.body


class MessageFinder:
    """Reads the messages of one file from an offset on, and finds the next one where the file is damaged.

    `offset` is where the next message begins. `unreadable` gathers what was passed over.
    """

    def __init__(self, fd: int, offset: int, size: int, largest: int) -> None:
        """`size` is that of the file; no record has more than `largest` bytes behind its length."""
        self.offset = offset
        self.unreadable: list[Unreadable] = []
        self._fd = fd
        self._size = size
        self._largest = largest
        self._data = b""
        self._base = 0  # the offset of the first byte of `_data`
        self._steps = 0

    def next(self) -> QueuedMessage | None:
        """The next message; None at the end of the file. Raises OSError."""
        while self.offset < self._size:
            at = self.offset
            end = self._end(at)
            if end is None or not self._goes_on(end):
                end = self._recover(at, end)
                if end is None:
                    continue
            self.offset = end
            return self._parse(at, end)
        return None

    def _parse(self, at: int, end: int) -> QueuedMessage:
        data, begin = self._bytes(at, end - at)
        _, timestamp, attempts, message_id = RECORD.unpack_from(data, begin)
        if 0 < timestamp < _SECONDS:
            timestamp *= 1_000_000_000
        return QueuedMessage(timestamp, attempts, message_id, data[begin + RECORD.size : begin + end - at])

    def _bytes(self, at: int, length: int) -> tuple[bytes, int]:
        """Bytes that hold [at, at + length) of the file, and where those begin in them."""
        begin = at - self._base
        if begin < 0 or begin + length > len(self._data):
            self._data, self._base, begin = self._read(at, max(length, WINDOW)), at, 0
        if len(self._data) - begin < length:
            raise OSError(f"the file has become shorter: {at + length} bytes are not there any more")
        return self._data, begin

    def _read(self, at: int, length: int) -> bytes:
        wanted = min(length, self._size - at)
        pieces: list[bytes] = []
        while wanted and (piece := os.pread(self._fd, wanted, at)):
            pieces.append(piece)
            at, wanted = at + len(piece), wanted - len(piece)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    # ---- whether it is a message

    def _end(self, at: int) -> int | None:
        """Where the record at this offset ends, if its length is possible."""
        if self._size - at < RECORD.size:
            return None
        data, begin = self._bytes(at, _LENGTH.size)
        (length,) = _LENGTH.unpack_from(data, begin)
        end: int = at + _LENGTH.size + length
        return end if LEAST <= length <= self._largest and end <= self._size else None

    def _goes_on(self, at: int) -> bool:
        """Whether the file ends here, or a record could begin here: perhaps one that was cut off."""
        if at == self._size:
            return True
        if self._size - at < _LENGTH.size:
            return False
        data, begin = self._bytes(at, _LENGTH.size)
        (length,) = _LENGTH.unpack_from(data, begin)
        return bool(LEAST <= length <= self._largest)

    def _looks_like_one(self, at: int) -> bool:
        """Whether there is a time and an id where a message at this offset has them."""
        if self._size - at < RECORD.size:
            return False
        head = os.pread(self._fd, RECORD.size, at)
        if len(head) < RECORD.size:
            return False
        _, timestamp, _, message_id = RECORD.unpack(head)
        return _EARLIEST <= timestamp < _LATEST and _HEX.fullmatch(message_id) is not None

    # ---- going on behind damage

    def _recover(self, at: int, end: int | None) -> int | None:
        """Decide about a record that is broken, or is followed by no record; returns its end if it is whole.

        Otherwise `offset` is behind the damage, which is noted.
        """
        self._steps = _STEPS
        if end is not None and self._looks_like_one(end):
            return end  # only the length of the next record is damaged
        cut_off = end is None and self._size - at >= _LENGTH.size and self._goes_on(at)
        following = self._search(at + 1, not cut_off, end)
        if end is not None and (following is None or (following >= end and self._looks_like_one(at))):
            return end  # what lies behind it is damaged, or cut off
        stop = self._size if following is None else following
        torn = following is None and (end is None and (cut_off or self._size - at < RECORD.size))
        self.unreadable.append(Unreadable(at, stop - at, torn or self._is_zero(at, stop)))
        self.offset = stop
        return None

    def _is_zero(self, at: int, stop: int) -> bool:
        """Whether this is the end of the file, and nothing but zeros: a power cut leaves such."""
        while at < stop:
            piece = self._read(at, min(WINDOW, stop - at))
            if not piece or piece.strip(b"\0"):
                return False
            at += len(piece)
        return stop == self._size

    def _search(self, at: int, may_break_off: bool, end: int | None) -> int | None:
        """The first offset from `at` on where a message begins that can be believed.

        `end` is where the present record ends by its own length, which may be wrong: a message before it must
        be one of a row that goes on behind it, or else it is a part of the present one's body.
        """
        while self._size - at >= RECORD.size and self._steps > 0:
            piece = self._read(at, WINDOW)
            for match in _MESSAGE.finditer(piece):
                candidate = at + match.start()
                if self._believable(candidate, may_break_off, end):
                    return candidate
                if self._steps <= 0:
                    return None
            if len(piece) < RECORD.size:
                return None
            at += len(piece) - RECORD.size + 1
        return None

    def _believable(self, at: int, may_break_off: bool, end: int | None) -> bool:
        """Whether whole messages follow each other from here to the end of the file.

        With `may_break_off` a few of them are enough: there may be more damage behind them. A record that was
        cut off by a crash has nothing behind it, and its body may hold anything. So nothing in it is believed
        that does not end with the file to the byte.
        """
        row, begin = 0, at
        while at < self._size:
            self._steps -= 1
            stop = self._end(at) if self._looks_like_one(at) else None
            if stop is None or self._steps <= 0:
                spans = end is None or begin >= end or at > end
                follows = row >= _ENOUGH or self._goes_on(at) or self._looks_like_one(at)
                return may_break_off and row > 0 and follows and spans
            row, at = row + 1, stop
            if may_break_off and row >= _ENOUGH and (end is None or begin >= end or at > end):
                return True
        return True
