"""The log of one topic: everything published to it, in order, numbered by position.

Owns the segments on disk and the newest batches in memory (the tail). Messages are added to the writer and
become real with `commit`: one write for everything since the last one. Who has read what is the channels'
business; they tell through `trim` what nobody needs any more.

An ephemeral topic has the same log without a directory: the tail is all there is.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nsquark import kernel
from nsquark.errors import LogCorrupt
from nsquark.kernel.pure import MAGIC

from .damage import Damage, Record, keep, records, tidy
from .ranges import Ranges
from .recovery import Survey, check_magic
from .segment import SUFFIX, Segment
from .syncing import LogSync, Owed, take_up

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


class Inspected(NamedTuple):
    """What is in a log's directory."""

    files: list[tuple[int, int, float]]  # the first position of each, its size, when it was written last
    newest: Survey | None
    records: list[Record]


def inspect(directory: Path) -> Inspected:
    """Look at a log without changing anything: all of its newest file, the beginnings of the others.

    Raises UnknownVersion and OSError.
    """
    paths = directory.glob("*" + SUFFIX) if directory.is_dir() else ()
    bases = sorted(int(path.stem) for path in paths if path.stem.isdigit())
    files: list[tuple[int, int, float]] = []
    newest: Survey | None = None
    for base in bases:
        segment = Segment(directory, base)
        stat = os.stat(segment.path)
        files.append((base, stat.st_size, stat.st_mtime))
        segment.size = stat.st_size
        if base == bases[-1]:
            newest = segment.inspect()
        else:
            with open(segment.path, "rb", buffering=0) as file:
                check_magic(str(segment.path), 0, file.read(len(MAGIC)))
    return Inspected(files, newest, records(directory))


class TopicLog(kernel.LogEnd):
    """What a commit does where nothing is out of the ordinary is the kernel's: `LogEnd`."""

    def __init__(
        self,
        directory: Path | None,
        limits: Limits,
        lease: Lease,
        floor: int = 0,
        inspected: Inspected | None = None,
    ) -> None:
        """Open the log in `directory` (None: memory only), recovering what a crash left.

        A new log begins at position `floor`. Raises OSError and UnknownVersion; what is damaged is cut off or
        left out only once it is kept aside.
        """
        super().__init__(limits.max_bytes_per_file, limits.tail_messages, TAIL_BYTES)
        self.directory = directory
        self.limits = limits
        self.segments: list[Segment] = []
        self.recovered: list[Deferred] = []  # the deferred batches of the newest segment, for the journal
        self.lost = Ranges()  # positions between the first and the end whose messages were damaged
        self.records: list[Record] = []  # of damage, those that nobody has acknowledged
        self.found: list[Record] = []  # of those, what was found just now
        self.cut: tuple[Path, int] | None = None  # the file whose torn tail was cut off, and its bytes
        self._lease = lease
        self._owed: list[Owed] = []  # of which the disk may not hold everything, in order; the newest is last
        self._syncs: list[LogSync] = []  # under way
        self._idle_at = -1
        self._kept = self._kept_bytes = 0
        self.first = self.end = floor
        if directory is not None:
            self._recover(directory, floor, inspected)
        self.writer = kernel.BatchWriter(self.end, 0)

    def _recover(self, directory: Path, floor: int, inspected: Inspected | None) -> None:
        files, newest, known = inspect(directory) if inspected is None else inspected
        directory.mkdir(parents=True, exist_ok=True)
        doubted = take_up(directory)
        tidy(directory)
        self.records = [each for each in known if not each.acknowledged and each.damage.first is not None]
        for (base, size, modified), following in zip(files, [*files[1:], None], strict=False):
            segment = Segment(directory, base)
            segment.size, segment.modified = size, modified
            if following is None:
                assert newest is not None
                self.segments += self._take_up(segment, newest)
            else:
                segment.end, segment.verified = following[0], False
                damages = [each.damage for each in known if each.file == segment.path.name]
                self.segments += self._without(segment, damages)
        if self.segments:
            self.fd = os.open(self.segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        else:
            segment, self.fd = self._create(directory, floor)
            self.segments.append(segment)
        last = self.segments[-1]
        self.first, self.end = self.segments[0].file_base, last.end
        # The process that has written the newest may have been killed before it could sync it.
        parts = {segment.path: segment for segment in self.segments}  # of each file, the last
        self._owed = [
            Owed(segment, segment.file_base, failed=segment.file_base in doubted)
            for segment in parts.values()
            if segment.file_base in doubted or segment is last
        ]
        self._count_unsynced()

    def _take_up(self, segment: Segment, found: Survey) -> list[Segment]:
        """What is whole of the newest file, once damage in it is kept aside and a torn tail is cut off."""
        damages = found.damages
        if found.exhausted:
            damages = [*damages, Damage(found.whole, segment.size - found.whole, found.end, found.end)]
        for damage in damages:
            self._put_aside(segment, damage)
        if found.whole < segment.size:
            os.truncate(segment.path, found.whole)
            self.cut = segment.path, segment.size - found.whole
        for batch in found.deferred:
            self.recovered.append(Deferred(batch[3], batch[2], batch[6]))
        for damage in damages:
            self.lost.add(damage.first or 0, damage.end or 0)
        if found.pieces:
            return [segment.piece(each) for each in found.pieces]
        return [Segment(segment.path.parent, segment.base)]

    def _put_aside(self, segment: Segment, damage: Damage) -> None:
        record, new = keep(segment.path, damage)
        if not record.acknowledged and record.path not in [each.path for each in self.records]:
            self.records.append(record)
        if new:
            self.found.append(record)

    def _without(self, segment: Segment, damages: list[Damage]) -> list[Segment]:
        """An old file as its records say: a segment for each part that is not damaged."""
        parts: list[Segment] = []
        start, base = 0, segment.base

        def add(stop: int, end: int) -> None:
            part = Segment(segment.path.parent, base, segment.path, start)
            part.size, part.end, part.modified, part.verified = stop, end, segment.modified, False
            if not part.empty or base < end:  # of which even the bytes are gone
                parts.append(part)

        for offset, length, first, end in sorted(damages):
            if (
                first is None
                or end is None
                or not base <= end <= segment.end
                or offset + length > segment.size
            ):
                continue  # not of this file, whatever it is
            if offset >= start and first >= base:
                add(offset, first)
            start, base = max(start, offset + length), max(base, end)
            self.lost.add(first, end)
        add(segment.size, segment.end)
        return parts or [_nothing_of(segment)]

    def leave_out(self, segment: Segment) -> list[Record]:
        """Go on without what is damaged in a segment, as `verify` has found it; returns what is lost."""
        if segment not in self.segments:
            return []
        at = self.segments.index(segment)
        self.segments[at : at + 1] = segment.pieces or [_nothing_of(segment)]
        known = {each.path for each in self.records}
        for record in segment.lost:
            self.lost.add(*record.lost)
            if not record.acknowledged and record.path not in known:
                self.records.append(record)
        self.first = self.segments[0].file_base
        segment.close()
        return segment.lost

    def suspect(self, error: LogCorrupt) -> Segment | None:
        """The segment that did not read as it was written, to be verified (again).

        None where that would not help: it is gone, or has been suspected before. Raises OSError.
        """
        for segment in self.segments:
            if str(segment.path) == error.segment and segment.start <= error.offset <= segment.size:
                if segment.suspected:
                    return None
                if segment is self.segments[-1]:
                    self._roll()
                segment.verified, segment.suspected = False, True
                return segment
        return None

    def _create(self, directory: Path, base: int) -> tuple[Segment, int]:
        """A new segment and the descriptor to write it with."""
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
        waiting = [owed for owed in self._owed if owed.fd >= 0]
        if len(waiting) >= MOST_UNSYNCED:
            # So many files between two fsyncs: they are tiny, and waiting for the disk keeps descriptors few.
            waiting[0].sync()
        segment, fd = self._create(self.directory, self.end)
        old.modified = time.time()
        self._owed[-1].fd = self.fd
        self._owed.append(Owed(segment, segment.base))
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
        """What is gone of all from `start` on: damaged, or in a log without files, needed by nobody."""
        found = []
        if self.directory is not None:
            if start < self.first:
                found.append((start, self.first))
            return found + [
                (max(first, start), end) for first, end in self.lost if end > max(start, self.first)
            ]
        for chunk in self.chunks:
            if start < chunk.position:
                found.append((start, chunk.position))
            start = max(start, chunk.end)
        return [*found, (start, self.end)] if start < self.end else found

    @property
    def size(self) -> int:
        """Bytes in the files, or in memory."""
        return sum(each.size - each.start for each in self.segments) if self.segments else self.chunk_bytes

    # ---- what the disk holds

    def start_sync(self) -> LogSync:
        """What is to be `run` in a thread, and then given to `finish_sync`.

        Raises OSError, and nothing has changed, when there are no more descriptors, or no room for another
        file where the newest must be written again.
        """
        if self.fd < 0:  # in memory only, or closed
            self._syncs.append(sync := LogSync(None, ()))
            return sync
        newest = self._owed[-1]
        if newest.failed:
            if newest.segment.size:
                self._roll()  # nothing may be added to what is copied
            else:
                newest.failed = False  # there is nothing in it
                newest.forget()
        fd = os.dup(self.fd)
        sync = LogSync(self.directory, self._owed)
        for owed in self._owed[:-1]:
            if owed.failed:
                owed.drop()
                if not owed.copying:
                    owed.copying = True
                    sync.copies.append((owed, [each for each in self.chunks if each.segment is owed.segment]))
            elif owed.fd >= 0:
                sync.files.append((owed, owed.fd, owed.segment.end))
                owed.fd = -1
        sync.files.append((self._owed[-1], fd, self.end))
        self._syncs.append(sync)
        return sync

    def finish_sync(self, sync: LogSync) -> OSError | None:
        """Take note of what is on the disk; returns why not everything is that was there when it started."""
        if sync in self._syncs:
            self._syncs.remove(sync)
            for owed, _, position in sync.files:
                if owed not in sync.synced:
                    owed.fail()
                elif not owed.failed:
                    owed.synced = max(owed.synced, position)
            for owed, _ in sync.copies:
                owed.copying = False
                if owed in sync.synced:
                    owed.mend()
                    for segment in self.segments:  # readers look whether anything of it was lost
                        if segment.path == owed.segment.path:
                            segment.close()
                            segment.verified = False
            for owed in sync.owed:
                # a copy has taken the place of a file that the folder knew
                owed.in_folder = sync.in_folder or (owed.in_folder and not sync.copies)
            self._owed[:-1] = [owed for owed in self._owed[:-1] if not owed.settled]
            self._count_unsynced()
        if sync.error is None and any(owed.failed for owed in sync.owed):
            return OSError(errno.EIO, "an fsync before this one has failed")
        if sync.error is None and sync.lost:
            return OSError(errno.EIO, sync.lost[0][1])
        return sync.error

    def _count_unsynced(self) -> None:
        owed = next((owed for owed in self._owed if not owed.settled), None)
        if owed is None:
            self.unsynced = 0
        else:
            self.unsynced = self.end - (owed.synced if owed.in_folder else owed.segment.file_base)

    def sync(self) -> None:
        """Bring everything to the disk, here and now. Raises OSError."""
        for pending in [each for each in self._syncs if each.ran]:
            self.finish_sync(pending)
        error: OSError | None = None
        for _ in range(2):  # what fails the first time is written again the second time
            if not self.unsynced and not self.new_file:
                return
            sync = self.start_sync()
            sync.run()
            error = self.finish_sync(sync)
        if error is not None or self.unsynced:
            raise error or OSError(errno.EIO, "an fsync is still under way")

    @property
    def new_file(self) -> bool:
        """Whether a power cut could take a whole file of this log with it."""
        return not all(owed.in_folder for owed in self._owed)

    @property
    def failing(self) -> bool:
        """Whether something must be written again before anything can be called synced."""
        return any(owed.failed for owed in self._owed)

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
        while (number := self._in_first_file()) < len(self.segments):
            if self.segments[number - 1].end > low or self._wanted(self.segments[0], now):
                break
            gone += self.segments[:number]
            del self.segments[:number]
        if gone:
            self._forget_owed({segment.path for segment in gone})
        self.first = self.segments[0].file_base
        self.lost.drop_below(self.first)
        return gone

    def _forget_owed(self, deleted: set[Path]) -> None:
        """Files that are deleted need not be synced."""
        for owed in [each for each in self._owed if each.segment.path in deleted]:
            owed.drop()
            if owed.failed:
                owed.forget()
            self._owed.remove(owed)
        self._count_unsynced()

    def _in_first_file(self) -> int:
        """How many segments the oldest file is: it goes as a whole."""
        path = self.segments[0].path
        return next((at for at, each in enumerate(self.segments) if each.path != path), len(self.segments))

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
        """Close every file, after an fsync unless the log is to be deleted. What is not committed is gone.

        Raises OSError when the disk does not hold everything; closed it is all the same.
        """
        try:
            if sync:
                self.sync()
        finally:
            for owed in self._owed:
                owed.drop()
            self._syncs.clear()  # what comes of them is of no use to anybody
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            self.chunks.clear()
            for segment in self.segments:
                segment.close()


def _position_of(chunk: kernel.Chunk) -> int:
    return chunk.position


def _base_of(segment: Segment) -> int:
    return segment.base


def _nothing_of(segment: Segment) -> Segment:
    """What is left of a file that has nothing whole: it has its place in the log until it is deleted."""
    return Segment(segment.path.parent, segment.base, segment.path, segment.size)
