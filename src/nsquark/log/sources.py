"""What a reader reads from: a file of the log, or a piece of memory, each a run of batches."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import LogCorrupt
from nsquark.kernel.pure import FRAME, HEADER, MAGIC

from .segment import NotIndexed, Segment
from .topic_log import TopicLog

MAX_FILES = 64  # that one range may hold open
_WINDOW = 64 << 10


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
        """Do what takes time, in a thread, before any other method is called."""

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

    def last_header(self, stop: int) -> tuple[int, bytes]:
        """The offset and the header of the batch that ends at `stop`. Raises LogCorrupt."""
        _, offset = self.mark_before(self.end, stop - 1)
        while offset < stop:
            window = self.read(offset, _WINDOW)
            within = min(len(window), stop - offset)
            at, needed, _, last = kernel.scan_batches(window, 0, within, False, within)
            if offset + at == stop and last is not None:
                at = last[0]
            elif at and needed == HEADER.size:  # the window ends within a header
                offset += at
                continue
            header = bytes(window[at : at + HEADER.size])
            if len(header) < HEADER.size or not needed:
                break
            length = HEADER.unpack(header)[2]
            if offset + at + length == stop:
                return offset + at, header
            offset += at + length  # over a batch that is longer than the window
        raise LogCorrupt(self.name, offset, "no batch ends where one should")

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
        """Raises OSError when it cannot be opened, and NotIndexed when it must be fetched first."""
        if segment.store is not None and not segment.verified:
            raise NotIndexed(segment)
        super().__init__(str(segment.path), segment.base, segment.end, segment.size, segment.start)
        self._segment = segment
        try:
            self.descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            segment.has_left()
            raise

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


def hold(log: TopicLog, start: int, end: int, max_bytes: int) -> list[Source]:
    """Sources that hold [start, end), or at least `max_bytes` of it, but no more than MAX_FILES files.

    They end before a segment that must be fetched. Raises NotIndexed where that is the first one.
    """
    if log.directory is None:
        return _hold_memory(log, start, end, max_bytes)
    first = log.segment_at(start)
    held: list[Source] = []
    behind = 0  # the bytes of all sources but the first, of which only a part may be wanted
    try:
        while first is not None and first.base < end and len(held) < MAX_FILES:
            if held and behind >= max_bytes:
                break
            if not (first.empty and first.verified):
                try:
                    held.append(FileSource(first))
                except NotIndexed:
                    if held:
                        break
                    raise
                behind += first.size - first.start if len(held) > 1 else 0
            first = log.segment_after(first)
    except (OSError, NotIndexed):
        for source in held:
            source.close()
        raise
    return held


def _hold_memory(log: TopicLog, start: int, end: int, max_bytes: int) -> list[Source]:
    pieces: list[bytes] = []
    size = 0
    chunks = log.tail.find_run(start)
    for chunk in chunks:
        if chunk.position >= end or (pieces and size >= max_bytes):
            break
        pieces.append(chunk.data)
        size += len(chunk.data)
    return [MemorySource(pieces, chunks[0].position, chunks[len(pieces) - 1].end)] if pieces else []
