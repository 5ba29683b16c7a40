"""A log read from outside: ranges of batches as they lie on disk, and positions by time.

What begins here begins on the event loop and takes hold of what it needs: descriptors, which keep a file
readable even when it is deleted, or pieces of memory. Everything that waits for the disk comes after that and
may run in a thread.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import LogCorrupt
from nsquark.kernel.pure import FRAME, HEADER, MAGIC

from .segment import Segment
from .topic_log import TopicLog

PIECE = 512 << 10
MAX_FILES = 64  # that one range may hold open
_WINDOW = 64 << 10
_INDEX = struct.Struct(">I")


class BatchHead(NamedTuple):
    offset: int
    length: int
    messages: int
    position: int
    time: int
    due: int


class Source:
    """A segment, or a piece of memory: batches of the positions [base, end), at the offsets [start, size)."""

    def __init__(self, name: str, base: int, end: int, size: int, start: int = 0) -> None:
        self.name = name
        self.base = base
        self.end = end
        self.size = size
        self.start = start

    def prepare(self) -> None:
        """Do what takes time, in a thread, before anything else is asked for."""

    def read(self, offset: int, size: int) -> kernel.Buffer:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def marks(self) -> list[tuple[int, int]]:
        """(position, offset) of some batches, the first among them."""
        return [(self.base, self.start)]

    def mark_before(self, position: int, offset: int) -> tuple[int, int]:
        """(position, offset) of a batch that begins at or before both."""
        return self.base, self.start

    def batches(self, offset: int) -> Iterator[BatchHead]:
        """The batches from `offset` on. Raises LogCorrupt."""
        window, start = self.read(offset, _WINDOW), offset
        while offset < self.size:
            if offset + HEADER.size > start + len(window):
                window, start = self.read(offset, _WINDOW), offset
            if len(window) < offset - start + HEADER.size:
                raise LogCorrupt(self.name, offset, "the file is shorter than it was")
            magic, _, length, count, position, _, time, due = HEADER.unpack_from(window, offset - start)
            if magic != MAGIC or length < HEADER.size or not self.base <= position < self.end:
                raise LogCorrupt(self.name, offset, "no batch begins here")
            yield BatchHead(offset, length, count, position, time, due)
            offset += length

    def find(self, position: int) -> BatchHead:
        """The batch that holds `position`. Raises LogCorrupt."""
        _, offset = self.mark_before(position, self.size)
        for batch in self.batches(offset):
            if position < batch.position + batch.messages:
                return batch
        raise LogCorrupt(self.name, self.size, f"no message {position}")

    def stop(self, begin: BatchHead, end: int, budget: int, one: bool) -> tuple[int, int]:
        """How far to read from `begin`: (offset, position) behind the last batch that holds anything before
        `end` and fits into `budget` bytes. With `one`, the first is taken even if it does not fit.
        """
        if self.end <= end and self.size - begin.offset <= budget:
            return self.size, self.end
        position, offset = self.mark_before(end - 1, begin.offset + budget)
        if offset <= begin.offset:
            position, offset = begin.position, begin.offset
        for batch in self.batches(offset):
            fits = batch.offset + batch.length - begin.offset <= budget
            if batch.position >= end or not (fits or (one and batch.offset == begin.offset)):
                break
            position, offset = batch.position + batch.messages, batch.offset + batch.length
        return offset, position

    def first_time(self) -> int | None:
        """When the first message came, or None if there is none."""
        return next((batch.time for batch in self.batches(self.start)), None)

    def position_at(self, timestamp: int) -> int:
        """The position of the first message that is not before `timestamp`; the end if all are."""
        marks = self.marks()

        def time_of(mark: tuple[int, int]) -> int:
            return next(self.batches(mark[1])).time

        at = max(bisect_left(marks, timestamp, key=time_of) - 1, 0)
        before = None
        for batch in self.batches(marks[at][1]):
            if batch.time >= timestamp:
                break
            before = batch
        if before is None:
            return self.base
        data = self.read(before.offset + HEADER.size, before.length - HEADER.size)
        offset = 0
        for number in range(before.messages):
            size, _, time, _, _ = FRAME.unpack_from(data, offset)
            if time >= timestamp:
                return before.position + number
            offset += 4 + size
        return before.position + before.messages


class FileSource(Source):
    def __init__(self, segment: Segment) -> None:
        """Raises OSError when it cannot be opened."""
        super().__init__(str(segment.path), segment.base, segment.end, segment.size, segment.start)
        self._segment = segment
        self.descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)

    def prepare(self) -> None:
        if not self._segment.verified:
            self._segment.verify(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.descriptor, min(size, self.size - offset), offset)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def marks(self) -> list[tuple[int, int]]:
        return [mark for mark in self._segment.marks if mark[1] < self.size] or [(self.base, self.start)]

    def mark_before(self, position: int, offset: int) -> tuple[int, int]:
        return self._segment.mark_before(position, offset)


class MemorySource(Source):
    def __init__(self, pieces: list[bytes], base: int, end: int) -> None:
        super().__init__("memory", base, end, sum(map(len, pieces)))
        self._pieces = pieces
        self._data = memoryview(b"")

    def prepare(self) -> None:
        self._data = memoryview(b"".join(self._pieces))

    def read(self, offset: int, size: int) -> memoryview:
        return self._data[offset : offset + size]


def _hold(log: TopicLog, start: int, end: int, max_bytes: int) -> list[Source]:
    """What holds [start, end), or at least `max_bytes` of it, as far as that is no more than a few files."""
    if log.directory is None:
        return _hold_memory(log, start, end, max_bytes)
    first = log.segment_at(start)
    held: list[Source] = []
    behind = 0  # bytes of those that are wanted from their beginning
    try:
        while first is not None and first.base < end and len(held) < MAX_FILES:
            if held and behind >= max_bytes:
                break
            if not (first.empty and first.verified):
                held.append(FileSource(first))
                behind += first.size - first.start if len(held) > 1 else 0
            first = log.segment_after(first)
    except OSError:
        for source in held:
            source.close()
        raise
    return held


def _hold_memory(log: TopicLog, start: int, end: int, max_bytes: int) -> list[Source]:
    pieces: list[bytes] = []
    size = 0
    chunks = log.chunks_from(start)
    for chunk in chunks:
        if chunk.position >= end or (pieces and size >= max_bytes):
            break
        pieces.append(chunk.data)
        size += len(chunk.data)
    return [MemorySource(pieces, chunks[0].position, chunks[len(pieces) - 1].end)] if pieces else []


class LogReader:
    """The batches that hold [start, end), at most `max_bytes` of them but at least one, and their index.

    The range ends where positions were lost, and is empty if `start` is one of them.

    Make it on the event loop; then, in a thread, `locate` once, `read` until there is nothing more, and only
    then ask for `index`, which is empty if it is not `indexed`. `close` it in any case.
    """

    def __init__(self, log: TopicLog, start: int, end: int, max_bytes: int, indexed: bool = True) -> None:
        """Takes hold of the range. Raises OSError when it cannot be opened."""
        if log.lost:
            missing = log.lost.next_start(start) if start not in log.lost else start
            end = end if missing is None else min(end, missing)
        self.start = start
        self.end = max(start, end)
        self.length = 0  # of the batches, in bytes
        self._max_bytes = max_bytes
        self._indexed = indexed
        self._sources = _hold(log, start, self.end, max_bytes) if start < self.end else []
        self._parts: list[tuple[Source, int, int]] = []  # from where to where
        self._index: list[bytes] = []
        self._want = self._skip = self._remaining = 0
        self._part = self._at = self._next = self._sent = 0

    @property
    def count(self) -> int:
        """How many messages of the range there are, once it is located."""
        return self.end - self.start

    def locate(self) -> None:
        """Find out which bytes those are. Raises LogCorrupt, LogDamaged or OSError."""
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
    def files(self) -> list[tuple[int, int, int]]:
        """Where its bytes lie, once it is located: descriptors, from where to where. None of them if they are
        in memory."""
        return [
            (source.descriptor, start, stop)
            for source, start, stop in self._parts
            if isinstance(source, FileSource)
        ]

    def read(self, size: int = PIECE) -> kernel.Buffer:
        """The next bytes of the batches; nothing at their end. Raises LogCorrupt or OSError."""
        if self._part == len(self._parts):
            return b""
        source, _, stop = self._parts[self._part]
        number = min(size, stop - self._at)
        # a header that begins within these bytes may end behind them
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
        self._segments = [segment for segment in log.segments if not segment.empty]
        self._memory = None if log.directory is not None else log.chunks_from(log.first)

    def position_at(self, timestamp: int) -> int:
        """Its position, or the end of the log if all are earlier. Raises LogCorrupt or OSError.

        Where the clock was set back there are several such messages, and it is one of them.
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
        try:
            source = FileSource(segment)
        except FileNotFoundError:
            return True
        try:
            time = source.first_time()
        except LogCorrupt:
            source.prepare()  # says what is damaged, if nobody has looked yet
            raise
        finally:
            source.close()
        return time is not None and time < timestamp
