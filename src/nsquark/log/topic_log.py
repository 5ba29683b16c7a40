"""The log of one topic: everything published to it, in order, numbered by position.

Owns the segments on disk and the newest batches in memory (the tail). Messages are added to the writer and
become real with `commit`: one write for everything since the last one. Who has read what is the channels'
business; they tell through `trim` what nobody needs any more.

An ephemeral topic has the same log without a directory: the tail is all there is.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nsquark import kernel

from .ranges import Ranges
from .segment import SUFFIX, Segment

TAIL_BYTES = 8 << 20
ROLL_WHEN_CONSUMED = 1 << 20
MOST_UNSYNCED = 64  # files of a log that are full and wait for an fsync

Lease = Callable[[int], tuple[int, int]]
"""Gives (first id, count): ids that nobody else has or will have, at least as many as asked for."""


@dataclass(slots=True, frozen=True)
class Deferred:
    """Messages that were published to be delivered later."""

    position: int
    count: int
    due: int  # ns since the epoch


class Limits(NamedTuple):
    """How large a log and its parts may grow. 0 switches a retention off."""

    max_bytes_per_file: int = 100 << 20
    tail_messages: int = 10000
    retention_bytes: int = 0
    retention_time: float = 0.0


class TopicLog(kernel.LogEnd):
    """What a commit does where nothing is out of the ordinary is the kernel's: `LogEnd`."""

    def __init__(self, directory: Path | None, limits: Limits, lease: Lease, floor: int = 0) -> None:
        """Open the log in `directory` (None: memory only), recovering what a crash left.

        A new log begins at position `floor`.
        """
        super().__init__(limits.max_bytes_per_file, limits.tail_messages, TAIL_BYTES)
        self.directory = directory
        self.limits = limits
        self.segments: list[Segment] = []
        self.recovered: list[Deferred] = []  # the deferred batches of the newest segment, for the journal
        self._lease = lease
        self._to_sync: list[int] = []
        self._new_file = False  # since the last sync
        self._idle_at = -1
        self._kept = self._kept_bytes = 0
        self.first = self.end = floor
        if directory is not None:
            self._recover(directory, floor)
        self.writer = kernel.BatchWriter(self.end, 0)

    def _recover(self, directory: Path, floor: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        bases = sorted(int(path.stem) for path in directory.glob("*" + SUFFIX) if path.stem.isdigit())
        for base, following in zip(bases, [*bases[1:], None], strict=False):
            segment = Segment(directory, base)
            stat = os.stat(segment.path)
            segment.size, segment.modified = stat.st_size, stat.st_mtime
            if following is None:
                for batch in segment.recover():
                    self.recovered.append(Deferred(batch[3], batch[2], batch[6]))
            else:
                segment.end = following
            self.segments.append(segment)
        if self.segments:
            self.fd = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        else:
            segment, self.fd = self._create(directory, floor)
            self.segments.append(segment)
        self.first, self.end = self.segments[0].base, self.segments[-1].end

    def _create(self, directory: Path, base: int) -> tuple[Segment, int]:
        """A new segment and the descriptor to write it with."""
        self._new_file = True
        segment = Segment(directory, base)
        segment.modified = time.time()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return segment, os.open(segment.path, flags, 0o600)

    # ---- publishing

    @property
    def pending(self) -> int:
        """Messages added and not yet committed."""
        return self.writer.count

    def _take_ids(self, count: int) -> None:
        """Ids for `count` messages that follow each other: of the lease at hand, or of a new one."""
        writer = self.writer
        if writer.ids_left < count:
            first, writer.ids_left = self._lease(count)
            writer.renumber(writer.position, first)
        writer.ids_left -= count

    def add_pubs(self, data: kernel.Buffer, start: int, count: int, line: int, timestamp: int) -> int:
        """Add a run of PUB commands (see kernel.scan_pubs); returns the bytes of their bodies."""
        self._take_ids(count)
        return self.writer.add_pubs(data, start, count, line, timestamp)

    def add_mpub(self, data: kernel.Buffer, start: int, count: int, timestamp: int) -> int:
        """Add a checked MPUB body (see kernel.scan_mpub); returns the bytes of its messages."""
        self._take_ids(count)
        return self.writer.add_mpub(data, start, count, timestamp)

    def add_bodies(self, bodies: list[kernel.Buffer], timestamp: int, due: int) -> int:
        """Add whole bodies, deliverable from `due` (ns since the epoch, 0 for at once)."""
        if not bodies:
            return 0
        self._take_ids(len(bodies))
        return self.writer.add_bodies(bodies, timestamp, due)

    def reserve_ids(self, count: int) -> int:
        """The first of `count` ids that follow each other, for `add_reserved`: nobody else gets them."""
        self._take_ids(count)
        first = self.writer.next_id
        self.writer.renumber(self.writer.position, first + count)
        return first

    def add_reserved(
        self, data: kernel.Buffer, start: int, count: int, first_id: int, timestamp: int, due: int
    ) -> int:
        """Add a checked MPUB body as a batch of its own, with ids that `reserve_ids` gave, in any process."""
        writer = self.writer
        usual = writer.next_id
        writer.renumber(writer.position, first_id)
        try:
            return writer.add_mpub(data, start, count, timestamp, due)
        finally:
            writer.renumber(writer.position, usual)

    def make_room(self, size: int) -> None:
        if self.torn:
            os.ftruncate(self.fd, self.segments[-1].size)
            self.torn = False
        newest = self.segments[-1].size
        if newest and newest + size > self.max_bytes_per_file:
            self._roll()

    def undo(self) -> None:
        # away with it, so that the next commit can follow
        self.torn = True
        os.ftruncate(self.fd, self.segments[-1].size)
        self.torn = False

    def _roll(self) -> None:
        assert self.directory is not None
        old = self.segments[-1]
        while len(self._to_sync) >= MOST_UNSYNCED:
            # So many files between two fsyncs: they are tiny, and waiting for the disk keeps descriptors few.
            os.fdatasync(self._to_sync[0])
            os.close(self._to_sync.pop(0))
        segment, fd = self._create(self.directory, self.end)
        old.modified = time.time()
        self._to_sync.append(self.fd)
        self.fd = fd
        self.segments.append(segment)

    # ---- reading

    @property
    def tail_length(self) -> int:
        """How many of the newest messages are in memory."""
        return self.end - self.chunks[0].position if self.chunks else 0

    def segment_at(self, position: int) -> Segment | None:
        """The segment that holds this position, or the first one behind it."""
        at = bisect_right(self.segments, position, key=_base_of) - 1
        return self.segments[max(at, 0)] if self.segments else None

    def segment_after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self.segments, segment.base, key=_base_of)
        return self.segments[at] if at < len(self.segments) else None

    def chunks_from(self, position: int) -> list[kernel.Chunk]:
        """The pieces of the tail from the one that holds this position to the first gap."""
        chunks = self.chunks
        at = bisect_right(chunks, position, key=_position_of) - 1
        if at < 0 or position >= chunks[at].end:
            return []
        end = at + 1
        while end < len(chunks) and chunks[end].position == chunks[end - 1].end:
            end += 1
        return chunks[at:end]

    def gaps(self, start: int) -> list[tuple[int, int]]:
        """What is gone of all from `start` on: in a log without files, what nobody needed."""
        if self.directory is not None:
            return [(start, self.first)] if start < self.first else []
        found = []
        for chunk in self.chunks:
            if start < chunk.position:
                found.append((start, chunk.position))
            start = max(start, chunk.end)
        return [*found, (start, self.end)] if start < self.end else found

    @property
    def size(self) -> int:
        """Bytes in the files, or in memory."""
        return sum(each.size for each in self.segments) if self.segments else self.chunk_bytes

    # ---- what the disk holds

    def start_sync(self) -> tuple[list[int], int]:
        """Descriptors to fsync and close, in a thread, and the number to give to `synced` afterwards.

        Raises OSError, and nothing has changed, when there are no more descriptors.
        """
        fds: list[int] = []
        try:
            if self.fd >= 0:
                fds.append(os.dup(self.fd))
            if self._new_file and self.directory is not None:
                # a file is only there for good once its folder says so
                for folder in (self.directory, self.directory.parent):
                    fds.append(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        fds, self._to_sync = self._to_sync + fds, []
        self._new_file = False
        return fds, self.unsynced

    @property
    def new_file(self) -> bool:
        """Whether a power cut could take a whole file of this log with it."""
        return self._new_file

    def synced(self, messages: int) -> None:
        self.unsynced -= messages

    @property
    def recent(self) -> int:
        """Where the segment before the newest begins."""
        return self.segments[-2].base if len(self.segments) > 1 else self.first

    @property
    def trimmable(self) -> bool:
        """Whether `trim` could let go of anything, so that asking every channel is worth the while."""
        return (
            len(self.segments) > 1
            or bool(self.chunks)
            or bool(self.segments and self.segments[0].size >= ROLL_WHEN_CONSUMED)
        )

    def trim(self, low: int, now: float) -> list[Segment]:
        """Let go of what lies before `low` and no retention wants; the caller deletes what is returned."""
        if self.directory is None:
            return []
        if self._idle_at == self.end:  # nothing new since the last time: memory is better used elsewhere
            self.chunks.clear()
            self.chunk_bytes = 0
        self._idle_at = self.end
        newest = self.segments[-1]
        if low >= self.end and newest.size >= ROLL_WHEN_CONSUMED and not self._wanted(newest, now):
            self._roll()
        gone: list[Segment] = []
        while (
            len(self.segments) > 1 and self.segments[0].end <= low and not self._wanted(self.segments[0], now)
        ):
            gone.append(self.segments.pop(0))
        self.first = self.segments[0].base
        return gone

    def _wanted(self, segment: Segment, now: float) -> bool:
        """Whether retention keeps this finished segment: as long as no limit that was set is exceeded."""
        limits = self.limits
        if not limits.retention_bytes and not limits.retention_time:
            return False
        if limits.retention_bytes and self.size > limits.retention_bytes:
            return False
        modified = segment.modified if segment is not self.segments[-1] else now
        return not limits.retention_time or now - modified <= limits.retention_time

    @property
    def overfull(self) -> bool:
        """Whether a log without files has grown enough since the last `keep` to do it again."""
        return len(self.chunks) > 2 * self._kept + 64 or self.chunk_bytes > TAIL_BYTES + 2 * self._kept_bytes

    def keep(self, needed: Ranges) -> None:
        """Let go of everything in memory but what holds one of these positions: for a log without files."""
        self.chunks = [chunk for chunk in self.chunks if needed.overlaps(chunk.position, chunk.end)]
        self.chunk_bytes = self._kept_bytes = sum(len(chunk.data) for chunk in self.chunks)
        self._kept = len(self.chunks)
        self.first = self.chunks[0].position if self.chunks else self.end

    def close(self, sync: bool = True) -> None:
        """Close every file, after an fsync unless the log is to be deleted. What is not committed is gone."""
        for fd in [*self._to_sync, self.fd]:
            if fd >= 0:
                if sync:
                    os.fsync(fd)
                os.close(fd)
        self.fd, self._to_sync = -1, []
        self.chunks.clear()
        for segment in self.segments:
            segment.close()


def _position_of(chunk: kernel.Chunk) -> int:
    return chunk.position


def _base_of(segment: Segment) -> int:
    return segment.base
