"""Reading a topic log from a position onwards, a run of frames at a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from nsquark import kernel
from nsquark.errors import LogCorrupt

from .segment import Segment
from .topic_log import TopicLog

READ_SIZE = 64 << 10  # at first; it doubles with each read that goes on from the last
MAX_READ_SIZE = 1 << 20
_HEADER = struct.Struct(">4sIIIQQqq")


@dataclass(slots=True)
class Run:
    """Messages that follow each other in the log and in their ids.

    With `due` set it is a deferred batch that the cursor has passed over, and `frames` is empty.
    """

    position: int
    count: int
    first_id: int
    frames: kernel.Buffer
    due: int = 0


STEPPED_IN = Run(0, 0, 0, b"")


class Cursor:
    """A place in a log. Reads from the tail where it can and from the files where it must.

    `position` is that of the next message. With `whatever_due` deferred batches are read like others.
    """

    __slots__ = (
        "_at", "_base", "_data", "_log", "_passed", "_read_size", "_remaining", "_segment", "_whatever_due",
        "position",
    )  # fmt: skip

    def __init__(self, log: TopicLog, position: int, whatever_due: bool = False) -> None:
        self._log = log
        self._whatever_due = whatever_due
        self.position = position
        self._data: bytes = b""
        self._at = 0
        self._base = 0  # the offset of _data in its segment
        self._segment: Segment | None = None
        self._remaining = 0
        self._read_size = READ_SIZE
        self._passed: Run | None = None  # the rest of a deferred batch in whose middle it was set

    def seek(self, position: int) -> None:
        """Go on from `position`."""
        if position != self.position:
            self.position = position
            self._segment = None
            self._data = b""
            self._at = self._remaining = 0
            self._read_size = READ_SIZE

    def read(self, want: int, max_bytes: int) -> Run | None:
        """The next messages: at most `want`, and at most `max_bytes` unless the first alone has more.

        None at the end of the log. Raises LogCorrupt where the log does not read as it was written, and
        NotIndexed where somebody must look into a large old file first; the cursor is then where it was.
        """
        while True:
            if self._at < len(self._data):
                frames, count, first, at, remaining = kernel.gather(
                    self._data, self._at, len(self._data), self._remaining, want, max_bytes
                )
                if count:
                    run = Run(self.position, count, first, frames)
                    self.position += count
                    self._at = at
                    self._remaining = remaining
                    return run
                passed = self._pass_deferred()
                if passed is STEPPED_IN:
                    continue
                if passed is not None:
                    return passed
            if not self._load():
                return None
            if self._passed is not None:
                passed, self._passed = self._passed, None
                return passed

    def _pass_deferred(self) -> Run | None:
        """Pass over a deferred batch at the cursor, or step into it where its due time does not matter."""
        if self._remaining or len(self._data) - self._at < _HEADER.size:
            return None
        magic, _, length, count, position, first_id, _, due = _HEADER.unpack_from(self._data, self._at)
        if magic != b"NQB1":
            raise self._corrupt("no batch begins here")
        if not due:
            return None
        if position != self.position or position + count > self._log.end:
            raise self._corrupt(f"positions {position} to {position + count} where {self.position} follows")
        if self._whatever_due:
            self._at += _HEADER.size
            self._remaining = count
            return STEPPED_IN
        self.position += count
        self._at += length
        return Run(position, count, first_id, b"", due)

    def _pass_rest_of_deferred(self) -> None:
        """The cursor was set into the middle of a batch: if that is deferred, its rest is passed over."""
        at = 0
        while True:
            _, _, length, count, first, first_id, _, due = _HEADER.unpack_from(self._data, at)
            if self.position < first + count:
                break
            at += length
        if due:
            skipped = self.position - first
            self._passed = Run(self.position, count - skipped, first_id + skipped, b"", due)
            self.position = first + count
            self._base, self._data = self._base + at + length, self._data[at + length :]
            self._at = self._remaining = 0

    def _corrupt(self, what: str) -> LogCorrupt:
        name = str(self._segment.path) if self._segment else "memory"
        return LogCorrupt(name, self._base + self._at, what)

    def _load(self) -> bool:
        """Bring more data to the cursor; False at the end of the log."""
        log = self._log
        if self.position < log.first:
            self.seek(log.first)
        if self.position >= log.end:
            return False
        chunk = log.chunk_at(self.position)
        if chunk is not None and chunk.data is not self._data:
            self._data, self._segment, self._base = chunk.data, chunk.segment, chunk.offset
            self._at = self._remaining = 0
            if chunk.position != self.position:
                self._find(self._data)
            return True
        if self._segment is None:
            return self._locate()
        return self._read_on()

    def _find(self, data: bytes) -> None:
        """Set the cursor within `data`, which begins with a batch header."""
        at, self._remaining, _ = kernel.find_message(data, 0, len(data), self.position)
        if at < 0:
            raise self._corrupt(f"no message {self.position}")
        self._at = at
        if self._remaining and not self._whatever_due:
            self._pass_rest_of_deferred()

    def _locate(self) -> bool:
        """Find the position by the index of its segment."""
        segment = self._log.segment_at(self.position)
        if segment is None:
            return False
        self._base, self._at, self._remaining = segment.offset_near(self.position), 0, 0
        self._segment = segment
        size = READ_SIZE
        while True:
            data = segment.read(self._base, size)
            at, remaining, needed = kernel.find_message(data, 0, len(data), self.position)
            if at >= 0:
                self._data, self._at, self._remaining = data, at, remaining
                if remaining and not self._whatever_due:
                    self._pass_rest_of_deferred()
                return True
            if needed <= len(data) or self._base + needed > segment.size:
                self._segment, self._data = None, b""
                raise LogCorrupt(str(segment.path), self._base, f"no message {self.position}")
            size = max(2 * size, needed)

    def _read_on(self) -> bool:
        """Go on in the file where the data at hand end, which may be within a message."""
        segment = self._segment
        assert segment is not None
        offset = self._base + self._at
        left = len(self._data) - self._at
        if offset >= segment.size:
            following = self._log.segment_after(segment)
            if following is None or self._remaining or self.position != following.base:
                raise self._corrupt(f"the segment ends before message {self.position}")
            self._segment, self._base, self._at, self._data = following, 0, 0, b""
            segment, offset, left = following, 0, 0
        self._read_size = min(2 * self._read_size, MAX_READ_SIZE)
        data = segment.read(offset, max(self._read_size, 2 * left))
        if len(data) <= left:
            raise self._corrupt(f"message {self.position} is cut off")
        self._data, self._base, self._at = data, offset, 0
        return True
