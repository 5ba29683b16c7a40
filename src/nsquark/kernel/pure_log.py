"""The end of a log, where commits are added and most reads find what they want.

What is seldom (another file, a disk that refuses, files of earlier) is left to who is built on these: `log`.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Sized
from typing import Any

from .pure import BatchWriter, Buffer, crc32c, gather
from .pure_intake import Intake, Receipt, settle_all

BLOCK = struct.Struct(">4sII")
_FINISH = struct.Struct(">cIQI")
_LENGTH = struct.Struct(">I")
_MAX_COUNT = 0xFFFFFFFF


class Tally:
    """Counts how many things took how long, in buckets that double: the first ends at 2**14 ns."""

    __slots__ = ("count", "counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * 64
        self.count = 0
        self.total_ns = 0

    def observe(self, ns: int, count: int = 1) -> None:
        """`count` things took `ns` each; a clock that was set back makes that 0."""
        if ns > 0:
            self.counts[(ns - 1 >> 14).bit_length()] += count
            self.total_ns += ns * count
        else:
            self.counts[0] += count
        self.count += count


class Extent:
    """How far a file of a log is written, and where in it to look for a position.

    `marks` are (position, offset) of a batch in each `stride` bytes, up to the offset `marked_to`.
    """

    __slots__ = ("end", "marked_to", "marks", "size", "stride")

    def __init__(self, end: int, stride: int) -> None:
        self.end = end
        self.stride = stride
        self.size = 0
        self.marks: list[tuple[int, int]] = []
        self.marked_to = 0

    def written(self, position: int, count: int, size: int) -> None:
        """Note that a run of batches with `count` messages has been appended."""
        if self.marked_to == self.size:
            if not self.marks or self.size - self.marks[-1][1] >= self.stride:
                self.marks.append((position, self.size))
            self.marked_to += size
        self.size += size
        self.end = position + count


class Chunk:
    """What one commit wrote: whole batches, as they lie in the segment at `offset`."""

    __slots__ = ("data", "end", "offset", "position", "segment")

    def __init__(self, position: int, end: int, data: bytes, segment: Any, offset: int) -> None:
        self.position = position
        self.end = end
        self.data = data
        self.segment = segment
        self.offset = offset


class LogEnd:
    """The newest file of a log and its newest batches in memory, `chunks`.

    Without segments the chunks are all there is. `torn`: something is behind the last whole batch.
    """

    writer: BatchWriter

    def __init__(self, max_bytes_per_file: int, max_messages: int, max_bytes: int) -> None:
        """At most `max_messages` and `max_bytes` are kept in memory, if there is a file for the rest."""
        self.max_bytes_per_file = max_bytes_per_file
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.segments: list[Any] = []
        self.chunks: list[Chunk] = []
        self.chunk_bytes = 0
        self.first = self.end = 0
        self.unsynced = 0
        self.fd = -1
        self.torn = False

    def make_room(self, size: int) -> None:
        """Mend what is torn, and begin another segment if the newest has no room for so much."""
        raise NotImplementedError

    def undo(self) -> None:
        """A write has failed: what there is of it is no whole batch."""
        raise NotImplementedError

    def commit(self) -> int:
        """Write what was added since the last commit; returns how many messages that were.

        When the disk refuses, raises OSError, and the log is as if nothing had been added.
        """
        writer, position = self.writer, self.end
        count = writer.count
        if not count:
            return 0
        data = writer.take()
        size = len(data)
        segment, offset = None, 0
        if self.segments:
            try:
                segment = self._write(data, size)
            except OSError:
                writer.renumber(position, writer.next_id)
                raise
            offset = segment.size
            segment.written(position, count, size)
        self.end = end = position + count
        self.unsynced += count
        self.chunks.append(Chunk(position, end, data, segment, offset))
        self.chunk_bytes += size
        too_many = end - self.chunks[0].position > self.max_messages
        if segment is not None and (too_many or self.chunk_bytes > self.max_bytes):
            self.shorten()
        return count

    def shorten(self) -> None:
        """Forget the oldest chunks until three quarters of the bounds are left: seldom, and many at once."""
        messages = self.end - (self.max_messages - self.max_messages // 4)
        gone = 0
        for chunk in self.chunks[:-1]:
            if self.chunk_bytes <= self.max_bytes * 3 // 4 and chunk.end > messages:
                break
            self.chunk_bytes -= len(chunk.data)
            gone += 1
        del self.chunks[:gone]

    def _write(self, data: bytes, size: int) -> Any:
        """Append to the newest segment, which is another one if that has no room."""
        segment = self.segments[-1]
        if self.torn or (segment.size and segment.size + size > self.max_bytes_per_file):
            self.make_room(size)
            segment = self.segments[-1]
        try:
            done = os.write(self.fd, data)
            while done < size:
                done += os.write(self.fd, memoryview(data)[done:])
        except OSError:
            self.undo()
            raise
        return segment

    def chunk_at(self, position: int) -> Chunk | None:
        """The chunk that holds this position, if it is in memory."""
        chunks = self.chunks
        if not chunks or not chunks[0].position <= position < self.end:
            return None
        chunk = chunks[-1]
        if position < chunk.position:
            chunk = chunks[bisect_right(chunks, position, key=_position_of) - 1]
        return chunk if position < chunk.end else None


class Run:
    """Messages that follow each other in the log and in their ids; `published` is when the first was.

    With `due` set it is a deferred batch that the cursor has passed over, and `frames` is empty.
    """

    __slots__ = ("count", "due", "first_id", "frames", "position", "published")

    def __init__(
        self, position: int, count: int, first_id: int, frames: Buffer, due: int = 0, published: int = 0
    ) -> None:
        self.position = position
        self.count = count
        self.first_id = first_id
        self.frames = frames
        self.due = due
        self.published = published


class LogCursor:
    """A place in a log: the `position` of the next message, and the data in which it is `at`.

    The data begin at `base` in their segment. `remaining` messages of the batch at hand are still to come.
    """

    __slots__ = ("at", "base", "data", "log", "position", "remaining", "segment")

    def __init__(self, log: LogEnd, position: int) -> None:
        self.log = log
        self.position = position
        self.data = b""
        self.at = 0
        self.base = 0
        self.remaining = 0
        self.segment: Any = None

    def take(self, want: int, max_bytes: int) -> Run | None:
        """The next messages, of the data at hand, or of the chunk that follows on them.

        At most `want`, and at most `max_bytes` unless the first alone has more. None, and the cursor is where
        it was, where none of them comes next.
        """
        log = self.log
        if self.at >= len(self.data) and log.first <= self.position < log.end:
            chunk = log.chunk_at(self.position)
            if chunk is None or chunk.position != self.position or chunk.data is self.data:
                return None
            self.data, self.segment, self.base = chunk.data, chunk.segment, chunk.offset
            self.at = self.remaining = 0
        if self.at >= len(self.data):
            return None
        frames, count, first, at, remaining = gather(
            self.data, self.at, len(self.data), self.remaining, want, max_bytes
        )
        if not count:
            return None
        run = Run(self.position, count, first, frames, 0, int.from_bytes(frames[8:16], "big", signed=True))
        self.position += count
        self.at = at
        self.remaining = remaining
        return run


class Records:
    """The records of a journal, on their way to its file in one block. Ranges that follow each other are one.

    0       4       8        12
    | NQJ1  | u32   | u32    | ...
    | magic | crc   | length | records
    """

    def __init__(self) -> None:
        self.fd = -1
        self.size = 0  # of the file
        self.unsynced = False
        self.copy: Callable[[bytes], None] | None = None  # gets every block that is written, too
        self._records = bytearray(BLOCK.pack(b"NQJ1", 0, 0))
        self._fin: tuple[int, int, int] | None = None  # the last F record, while it may still grow

    def undo(self) -> None:
        """A write has failed, after which there may be a part of it."""
        raise NotImplementedError

    @property
    def dirty(self) -> bool:
        return self._fin is not None or len(self._records) > BLOCK.size

    def add(self, record: bytes) -> None:
        if self._fin is not None:
            last, self._fin = self._fin, None
            self._finish(*last)
        self._records += record

    def _finish(self, number: int, start: int, end: int) -> None:
        while start < end:
            count = min(end - start, _MAX_COUNT)
            self._records += _FINISH.pack(b"F", number, start, count)
            start += count

    def finish(self, number: int, start: int, end: int) -> None:
        """The channel has finished [start, end)."""
        last = self._fin
        if last is not None:
            if last[0] == number and last[2] == start:
                self._fin = (number, last[1], end)
                return
            self._finish(*last)
        self._fin = (number, start, end)

    def drop(self) -> None:
        """Forget what was gathered."""
        del self._records[BLOCK.size :]
        self._fin = None

    def block(self) -> bytes:
        """The records gathered, as a block; none are left."""
        self.add(b"")
        records = self._records
        _LENGTH.pack_into(records, 8, len(records) - BLOCK.size)
        _LENGTH.pack_into(records, 4, crc32c(records, 8, len(records)))
        block = bytes(records)
        self.drop()
        return block

    def flush(self) -> None:
        """Write the records gathered since the last time. Raises OSError when the disk refuses."""
        if not self.dirty:
            return
        block = self.block()
        if self.fd < 0:
            return
        if self.copy is not None:
            self.copy(block)
        try:
            done = os.write(self.fd, block)
            while done < len(block):
                done += os.write(self.fd, memoryview(block)[done:])
        except OSError:
            self.undo()
            raise
        self.size += len(block)
        self.unsynced = True


class Committer:
    """Stores what an intake was given, with one write for all, and answers those who gave it.

    `stored` hears of it where there is anybody else to tell: while any of `heeded` is not empty, or when
    `sync_every` messages are not synced, unless it `syncs_soon` anyway.
    """

    log: LogEnd
    intake: Intake

    def __init__(
        self, clock: Callable[[], int], times: Tally, heeded: tuple[Sized, ...], sync_every: int
    ) -> None:
        """`times` are from the arrival of what is stored until it is, by `clock`, ns since the epoch."""
        self.clock = clock
        self.publish_times = times
        self.heeded = heeded
        self.sync_every = sync_every
        self.syncs_soon = False
        self.exiting = False
        self.message_count = 0
        self.message_bytes = 0
        self.active = True
        self.pumped = 0  # what lies before is the channels'

    def stored(self, first: int, receipts: list[Receipt]) -> None:
        """Everything from the position `first` on is; its publishers have yet to be answered."""
        raise NotImplementedError

    def failed(self, error: OSError, first: int, receipts: list[Receipt]) -> None:
        """Nothing is stored from `first` on."""
        raise NotImplementedError

    def commit(self) -> None:
        """Store what was published in this turn, and answer the publishers."""
        log, intake = self.log, self.intake
        writer = log.writer
        if self.exiting or not writer.count:
            return
        first, size = log.end, writer.body_bytes
        receipts, intake.receipts = intake.receipts, []
        try:
            count = log.commit()
        except OSError as error:
            self.failed(error, first, receipts)
            return
        self.message_count += count
        self.message_bytes += size
        self.active = True
        self.publish_times.observe(self.clock() - intake.since, count)
        if (log.unsynced >= self.sync_every and not self.syncs_soon) or any(map(len, self.heeded)):
            self.stored(first, receipts)
        else:
            settle_all(receipts)


def _position_of(chunk: Chunk) -> int:
    return chunk.position
