"""Reading a topic log from a position onwards, a run of frames at a time."""

from __future__ import annotations

from nsquark import kernel
from nsquark.errors import LogCorrupt
from nsquark.kernel import Run
from nsquark.kernel.pure import HEADER, MAGIC

from .topic_log import TopicLog

READ_SIZE = 64 << 10  # at first; it doubles with each read that goes on from the last
MAX_READ_SIZE = 1 << 20


STEPPED_IN = Run(0, 0, 0, b"")


class Cursor(kernel.LogCursor):
    """A place in a log. Reads from the tail where it can and from the files where it must.

    `position` is that of the next message. With `whatever_due` deferred batches are read like others.
    """

    __slots__ = ("_passed", "_read_size", "_stood_at", "_whatever_due")

    log: TopicLog

    def __init__(self, log: TopicLog, position: int, whatever_due: bool = False) -> None:
        super().__init__(log, position)
        self._whatever_due = whatever_due
        self._read_size = READ_SIZE
        self._stood_at = -1  # at the last `rest`
        self._passed: Run | None = None  # the rest of a deferred batch in whose middle it was set

    def seek(self, position: int) -> None:
        """Go on from `position`."""
        if position != self.position:
            self.position = position
            self.let_go()

    def let_go(self) -> None:
        """Forget the data at hand: the next read looks for the position again."""
        self.segment = None
        self.data = b""
        self.at = self.remaining = 0
        self._read_size = READ_SIZE

    def rest(self) -> bool:
        """Let go of the data, if nothing was read since the last call. Returns whether the cursor has any.

        To be called now and then, for cursors that live long: the data are up to a megabyte of a file, or a
        chunk that the log itself has long forgotten.
        """
        if self.data and self.position == self._stood_at:
            self.let_go()
        self._stood_at = self.position
        return bool(self.data)

    def read(self, want: int, max_bytes: int) -> Run | None:
        """The next messages: at most `want`, and at most `max_bytes` unless the first alone has more.

        None at the end of the log. What was lost to damage is stepped over. Raises LogCorrupt where the log
        does not read as it was written, LogDamaged where it must leave something out first, and NotIndexed
        where somebody must look into a large old file first; the cursor is then where it was.
        """
        while True:
            run = self.take(want, max_bytes)
            if run is not None:
                return run
            if self.at < len(self.data):
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
        if self.remaining or len(self.data) - self.at < HEADER.size:
            return None
        magic, _, length, count, position, first_id, _, due = HEADER.unpack_from(self.data, self.at)
        if magic != MAGIC:
            raise self._corrupt("no batch begins here")
        if not due:
            return None
        if position != self.position or position + count > self.log.end:
            raise self._corrupt(f"positions {position} to {position + count} where {self.position} follows")
        if self._whatever_due:
            self.at += HEADER.size
            self.remaining = count
            return STEPPED_IN
        self.position += count
        self.at += length
        return Run(position, count, first_id, b"", due)

    def _pass_rest_of_deferred(self) -> None:
        """The cursor was set into the middle of a batch: if that is deferred, its rest is passed over."""
        at = 0
        while True:
            _, _, length, count, first, first_id, _, due = HEADER.unpack_from(self.data, at)
            if self.position < first + count:
                break
            at += length
        if due:
            skipped = self.position - first
            self._passed = Run(self.position, count - skipped, first_id + skipped, b"", due)
            self.position = first + count
            self.base, self.data = self.base + at + length, self.data[at + length :]
            self.at = self.remaining = 0

    def _corrupt(self, what: str) -> LogCorrupt:
        name = str(self.segment.path) if self.segment else "memory"
        return LogCorrupt(name, self.base + self.at, what)

    def _load(self) -> bool:
        """Bring more data to the cursor; False at the end of the log."""
        log = self.log
        if self.position < log.first:
            self.seek(log.first)
        if log.lost:
            self.seek(log.lost.next_gap(self.position))
        if self.position >= log.end:
            return False
        chunk = log.chunk_at(self.position)
        if chunk is not None and chunk.data is not self.data:
            self.data, self.segment, self.base = chunk.data, chunk.segment, chunk.offset
            self.at = self.remaining = 0
            if chunk.position != self.position:
                self._find(self.data)
            return True
        if self.segment is None:
            return self._locate()
        return self._read_on()

    def _find(self, data: bytes) -> None:
        """Set the cursor within `data`, which begins with a batch header."""
        at, self.remaining, _ = kernel.find_message(data, 0, len(data), self.position)
        if at < 0:
            raise self._corrupt(f"no message {self.position}")
        self.at = at
        if self.remaining and not self._whatever_due:
            self._pass_rest_of_deferred()

    def _locate(self) -> bool:
        """Find the position by the index of its segment."""
        segment = self.log.segment_at(self.position)
        if segment is None:
            return False
        base = segment.offset_near(self.position)
        size = READ_SIZE
        while True:
            data = segment.read(base, size)  # may fail, and all is as it was
            at, remaining, needed = kernel.find_message(data, 0, len(data), self.position)
            if at >= 0:
                self.segment, self.base = segment, base
                self.data, self.at, self.remaining = data, at, remaining
                if remaining and not self._whatever_due:
                    self._pass_rest_of_deferred()
                return True
            if needed <= len(data) or base + needed > segment.size:
                self.data, self.at, self.remaining = b"", 0, 0
                raise LogCorrupt(str(segment.path), base, f"no message {self.position}")
            size = max(2 * size, needed)

    def _read_on(self) -> bool:
        """Go on in the file where the data at hand end, which may be within a message."""
        segment = self.segment
        assert segment is not None
        offset = self.base + self.at
        left = len(self.data) - self.at
        if offset >= segment.size:
            following = self.log.segment_after(segment)
            if following is None or self.remaining or self.position != following.base:
                raise self._corrupt(f"the segment ends before message {self.position}")
            begin = following.offset_near(following.base)
            self.segment, self.base, self.at, self.data = following, begin, 0, b""
            segment, offset, left = following, begin, 0
        self._read_size = min(2 * self._read_size, MAX_READ_SIZE)
        data = segment.read(offset, max(self._read_size, 2 * left))
        if len(data) <= left:
            raise self._corrupt(f"message {self.position} is cut off")
        self.data, self.base, self.at = data, offset, 0
        return True
