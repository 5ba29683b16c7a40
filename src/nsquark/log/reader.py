"""Reading ranges of a log as batches, as they lie on disk, and finding positions by time.

A reader is made on the event loop, where it takes hold of what it needs: descriptors, which keep a file
readable even when it is deleted, or pieces of memory. All work that waits for the disk comes after that and
may run in a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import LogCorrupt
from nsquark.kernel.pure import FRAME, HEADER

from .segment import Segment
from .sources import BatchHead, FileSource, MemorySource, Source, hold
from .topic_log import TopicLog

PIECE = 512 << 10
_INDEX = struct.Struct(">I")


class LogReader:
    """The batches that hold [start, end), at most `max_bytes` of them but at least one, and their index.

    The range ends where positions were lost, and is empty if `start` is one of them, or if the log has let
    go of it.

    The caller makes it on the event loop. Then, in a thread, it calls `locate` once, `read` until that
    returns nothing, and after that `index`, which is empty without `indexed`. It calls `close` in any case.
    """

    def __init__(self, log: TopicLog, start: int, end: int, max_bytes: int, indexed: bool = True) -> None:
        """Take hold of the range. Raises OSError when a file cannot be opened.

        Raises NotIndexed where the first segment must be fetched. The range ends before a later one of these.
        """
        if log.lost:
            missing = log.lost.next_start(start) if start not in log.lost else start
            end = end if missing is None else min(end, missing)
        self.start = start
        self.end = max(start, end) if start >= log.first else start
        self.length = 0  # of the batches, in bytes
        self._max_bytes = max_bytes
        self._indexed = indexed
        self._sources = hold(log, start, self.end, max_bytes) if start < self.end else []
        self._parts: list[tuple[Source, int, int]] = []  # from where to where
        self._index: list[bytes] = []
        self._want = self._skip = self._remaining = 0
        self._part = self._at = self._next = self._sent = 0

    @property
    def count(self) -> int:
        """How many messages of the range there are, once it is located."""
        return self.end - self.start

    def locate(self) -> None:
        """Find the bytes of the range. Raises LogCorrupt, LogDamaged or OSError."""
        position = self.start
        for source in self._sources:
            source.prepare()
            begin = source.find(position)
            if not self._parts:
                self._skip = position - begin.position
            stop, position = source.stop(begin, self.end, self._max_bytes - self.length, not self._parts)
            if stop <= begin.offset:
                break
            self._parts.append((source, begin.offset, stop))
            self.length += stop - begin.offset
            if position < source.end:
                break
        self.end = max(self.start, min(self.end, position))
        self._want = self.count if self._indexed else 0
        if self._parts:
            self._at = self._next = self._parts[0][1]

    @property
    def files(self) -> list[tuple[FileSource, int, int]]:
        """Where its bytes lie, once it is located: (file, start, stop). Empty if they are in memory."""
        return [
            (source, start, stop) for source, start, stop in self._parts if isinstance(source, FileSource)
        ]

    def read(self, size: int = PIECE) -> kernel.Buffer:
        """The next bytes of the batches; nothing at their end. Raises LogCorrupt or OSError."""
        if self._part == len(self._parts):
            return b""
        source, _, stop = self._parts[self._part]
        number = min(size, stop - self._at)
        # A header that begins within these bytes may end behind them.
        data = source.read(self._at, min(number + HEADER.size, stop - self._at))
        if len(data) < number:
            raise LogCorrupt(source.name, self._at + len(data), "the file is shorter than it was")
        if self._want:
            self._add_to_index(data, number, source)
        self._at += number
        self._sent += number
        if self._at == stop:
            self._part += 1
            if self._part < len(self._parts):
                self._at = self._next = self._parts[self._part][1]
        return memoryview(data)[:number]

    def _add_to_index(self, data: kernel.Buffer, size: int, source: Source) -> None:
        index, at, self._remaining, self._skip = kernel.index_frames(
            data, size, self._next - self._at, self._remaining, self._sent, self._skip, self._want
        )
        if at < 0:
            raise LogCorrupt(source.name, self._at, "no message begins where one should")
        self._index.append(index)
        self._want -= len(index) // 4
        self._next = self._at + at

    @property
    def index(self) -> bytes:
        """Where each message of the range begins in the batches, a big-endian u32 each. Raises LogCorrupt."""
        if self._want:
            raise LogCorrupt(self._sources[0].name, 0, f"{self._want} messages are missing")
        return b"".join(self._index)

    def close(self) -> None:
        for source in self._sources:
            source.close()


class Stored(NamedTuple):
    """A message as the log has it."""

    position: int
    due: int
    frame: memoryview

    @property
    def time(self) -> int:
        return int(FRAME.unpack_from(self.frame)[2])

    @property
    def id(self) -> str:
        return bytes(self.frame[18:34]).decode("ascii")

    @property
    def body(self) -> memoryview:
        return self.frame[FRAME.size :]


def read_messages(reader: LogReader) -> Iterator[Stored]:
    """All messages of a range, one by one, in a thread; closes the reader. Raises LogCorrupt or OSError."""
    try:
        reader.locate()
        batches = b"".join(iter(reader.read, b""))
        index = reader.index
    finally:
        reader.close()
    whole = MemorySource([batches], 0, 1 << 64)
    whole.prepare()
    heads = whole.batches(0)
    data = memoryview(batches)
    head = BatchHead(0, 0, 0, 0, 0, 0)
    for number, (offset,) in enumerate(_INDEX.iter_unpack(index)):
        while offset >= head.offset + head.length:
            head = next(heads)
        (size,) = _INDEX.unpack_from(data, offset)
        yield Stored(reader.start + number, head.due, data[offset : offset + 4 + size])


class TimeSearch:
    """Finds the first message at or after a time. Made on the event loop, asked in a thread."""

    def __init__(self, log: TopicLog) -> None:
        self._first, self._end = log.first, log.end
        found = sorted((*log.archived_segments, *log.segments), key=lambda each: each.base)
        self._segments = [each for each in found if not each.empty]
        self._memory = None if log.directory is not None else log.tail.find_run(log.first)

    def position_at(self, timestamp: int) -> int:
        """The position of that message, or the end of the log if all are earlier.

        If the clock was set back, there can be several such messages; the result is one of them. Raises
        LogCorrupt or OSError, and NotIndexed where a segment must be fetched.
        """
        if self._memory is not None:
            if not self._memory:
                return self._end
            chunks = self._memory
            memory = MemorySource([chunk.data for chunk in chunks], chunks[0].position, chunks[-1].end)
            memory.prepare()
            return memory.position_at(timestamp)
        low, high = 0, len(self._segments)
        while low < high:  # the number of segments that begin before that time
            middle = (low + high) // 2
            if self._begins_before(self._segments[middle], timestamp):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return self._first
        try:
            source = FileSource(self._segments[low - 1])
        except FileNotFoundError:  # deleted just now: what follows is the first there is
            return self._segments[low - 1].end
        try:
            source.prepare()
            return source.position_at(timestamp)
        finally:
            source.close()

    @staticmethod
    def _begins_before(segment: Segment, timestamp: int) -> bool:
        if segment.archived is not None:
            return segment.archived.time < timestamp
        try:
            source = FileSource(segment)
        except FileNotFoundError:
            return True
        try:
            time = source.first_time()
        except LogCorrupt:
            source.prepare()  # raises LogDamaged, if the file was not verified before
            raise
        finally:
            source.close()
        return time is not None and time < timestamp
