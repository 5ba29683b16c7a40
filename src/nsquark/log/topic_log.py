"""The log of one topic: everything published to it, in order, numbered by position.

The log owns the segments on disk and the newest batches in memory (the tail). A publish adds messages to the
writer. `commit` stores everything that was added since the last commit, with one write. The log does not know
its channels: the topic tells it through `trim` and `keep` what no channel needs any more.

An ephemeral topic has the same log without a directory: the tail is all there is.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from nsquark.errors import LogCorrupt
from nsquark.kernel import BatchWriter, Buffer

from .archived import Store
from .damage import Record
from .deferred import Deferred
from .files import LogFiles
from .opening import Inspected
from .ranges import Ranges
from .retention import Limits
from .segment import Segment
from .syncing import LogSync
from .tail import Tail

TAIL_BYTES = 8 << 20

IdLease = Callable[[int], tuple[int, int]]
"""Returns (first id, count): at least as many ids as asked for. No other call has returned them, or will."""


class TopicLog:
    """A log with files, or without any. The positions [first, end) are in it, except for those in `lost`."""

    def __init__(
        self,
        directory: Path | None,
        limits: Limits,
        lease: IdLease,
        floor: int = 0,
        inspected: Inspected | None = None,
        term: int = 0,
        store: Store | None = None,
        grown: Callable[[], object] | None = None,
    ) -> None:
        """Open the log in `directory` (None: memory only), recovering what a crash left.

        A new log begins at position `floor`. New files belong to `term`. With a `store`, what is only in the
        archive belongs to the log. `grown` is called in a `commit` when the log has grown so much that
        `trim_files` is worth its cost.
        Raises OSError and UnknownVersion. Damaged bytes are kept aside before they are cut off or left out.
        """
        self.directory = directory
        self.limits = limits
        self.files: LogFiles | None = None
        if directory is not None:
            self.files = LogFiles(directory, limits, floor, inspected, term, store, grown)
        self.tail = Tail(limits.tail_messages, TAIL_BYTES)
        self.first = self.end = floor
        self.unsynced = 0  # how many of the newest messages the disk may not hold
        self.lost = Ranges()  # positions between the first and the end whose messages were damaged
        if self.files is not None:
            self.first, self.end = self.files.first, self.files.end
            self.unsynced = self.files.count_unsynced()
            self.lost = self.files.lost
        self.writer = BatchWriter(self.end, 0)
        self._lease = lease
        self._idle_at = -1  # the end of the log at the last `trim`

    # ---- publishing

    @property
    def pending(self) -> int:
        """Messages added and not yet committed."""
        return self.writer.count

    def _prepare_ids(self, count: int) -> None:
        """Have the writer use ids for `count` messages that follow each other: the lease at hand, or another.

        The writer counts the ids that are left of a lease.
        """
        if self.writer.ids_left < count:
            first, number = self._lease(count)
            self.writer.use_ids(first, number)

    def add_pubs(self, data: Buffer, start: int, count: int, line: int, timestamp: int) -> int:
        """Add a run of PUB commands (see kernel.scan_pubs); returns the bytes of their bodies."""
        self._prepare_ids(count)
        return self.writer.add_pubs(data, start, count, line, timestamp)

    def add_mpub(self, data: Buffer, start: int, count: int, timestamp: int) -> int:
        """Add a checked MPUB body (see kernel.scan_mpub); returns the bytes of its messages."""
        self._prepare_ids(count)
        return self.writer.add_mpub(data, start, count, timestamp)

    def add_bodies(self, bodies: list[Buffer], timestamp: int, due: int) -> int:
        """Add whole bodies, deliverable from `due` (ns since the epoch, 0 for at once)."""
        if not bodies:
            return 0
        self._prepare_ids(len(bodies))
        return self.writer.add_bodies(bodies, timestamp, due)

    def reserve_ids(self, count: int) -> int:
        """The first of `count` ids that follow each other, for `add_reserved`. No other message gets them."""
        self._prepare_ids(count)
        first = self.writer.next_id
        self.writer.renumber(self.writer.position, first + count)
        return first

    def add_reserved(
        self, data: Buffer, start: int, count: int, first_id: int, timestamp: int, due: int
    ) -> int:
        """Add a checked MPUB body as a batch of its own, with ids that `reserve_ids` gave, in any process."""
        writer = self.writer
        usual = writer.next_id
        writer.renumber(writer.position, first_id)
        try:
            return writer.add_mpub(data, start, count, timestamp, due)
        finally:
            writer.renumber(writer.position, usual)

    def commit(self) -> int:
        """Store what was added since the last commit; returns how many messages that were.

        When the disk refuses, raises OSError, and the log is as if nothing had been added.
        """
        writer = self.writer
        position = self.end
        count = writer.count
        if not count:
            return 0
        data = writer.take()
        size = len(data)
        segment = None
        offset = 0
        if self.files is not None:
            try:
                segment = self.files.write(data, size)
            except OSError:
                writer.renumber(position, writer.next_id)
                raise
            offset = segment.size
            segment.add(position, count, size)
        self.end = position + count
        self.unsynced += count
        self.tail.add(position, self.end, data, segment, offset)
        return count

    # ---- reading

    @property
    def tail_length(self) -> int:
        """How many of the newest messages are in memory."""
        return self.end - self.tail.chunks[0].position if self.tail.chunks else 0

    @property
    def chunk_bytes(self) -> int:
        """The bytes of the messages in memory."""
        return self.tail.size

    @property
    def segments(self) -> list[Segment]:
        """The segments of its files, in order. A log without files has none."""
        return self.files.segments if self.files is not None else []

    @property
    def archived_segments(self) -> list[Segment]:
        """The segments that only the archive has, in order."""
        return self.files.archived if self.files is not None else []

    @property
    def archived_size(self) -> int:
        """The bytes of what only the archive has."""
        return self.files.archived_size if self.files is not None else 0

    @property
    def local_first(self) -> int:
        """The first position that is in its files, or in memory. Only the archive has what lies before."""
        return self.files.local_first if self.files is not None else self.first

    def segment_at(self, position: int) -> Segment | None:
        """The segment that holds this position, or the first one behind it."""
        return self.files.segment_at(position) if self.files is not None else None

    def segment_after(self, segment: Segment) -> Segment | None:
        return self.files.segment_after(segment) if self.files is not None else None

    def gaps(self, start: int) -> list[tuple[int, int]]:
        """The positions from `start` on that cannot be read, as ranges.

        They were damaged or deleted; in a log without files, no channel needed them.
        """
        found = []
        if self.directory is not None:
            if start < self.first:
                found.append((start, self.first))
            begin = max(start, self.first)
            return found + [(max(first, start), end) for first, end in self.lost if end > begin]
        for chunk in self.tail.chunks:
            if start < chunk.position:
                found.append((start, chunk.position))
            start = max(start, chunk.end)
        return [*found, (start, self.end)] if start < self.end else found

    @property
    def size(self) -> int:
        """Bytes in the files, or in memory."""
        return self.files.size if self.files is not None else self.tail.size

    @property
    def recent(self) -> int:
        """Where the segment before the newest begins."""
        segments = self.segments
        return segments[-2].base if len(segments) > 1 else self.first

    # ---- damage

    @property
    def recovered(self) -> list[Deferred]:
        """The deferred batches of the newest file, as it was opened: the journal may not have them."""
        return self.files.deferred if self.files is not None else []

    @property
    def records(self) -> list[Record]:
        """The records of damage that no operator has acknowledged."""
        return self.files.records if self.files is not None else []

    @property
    def found(self) -> list[Record]:
        """The records of damage that was found when the log was opened."""
        return self.files.found if self.files is not None else []

    @property
    def cut(self) -> tuple[Path, int] | None:
        """The file whose torn tail was cut off when the log was opened, and how many bytes that were."""
        return self.files.cut if self.files is not None else None

    def suspect(self, error: LogCorrupt) -> Segment | None:
        """The segment that did not read as it was written. The caller has to verify it (again).

        None where that would not help: the segment is gone, or has been suspected before. Raises OSError.
        """
        return self.files.suspect(error) if self.files is not None else None

    def leave_out(self, segment: Segment) -> list[Record]:
        """Go on without the parts of a segment that `verify` has found damaged; returns what is lost."""
        if self.files is None:
            return []
        lost = self.files.leave_out(segment)
        self.first = self.files.first
        return lost

    # ---- what the disk holds

    def start_sync(self) -> LogSync:
        """An attempt to sync. The caller runs it in a thread, and then gives it to `finish_sync`.

        Raises OSError, and nothing has changed, when there are no more descriptors, or no room for another
        file where the newest must be written again.
        """
        if self.files is None:
            return LogSync(None, ())
        return self.files.start_sync(self.tail.chunks)

    def finish_sync(self, sync: LogSync) -> OSError | None:
        """Take note of what is on the disk; returns why not everything is that was there when it started."""
        if self.files is None:
            self.unsynced = 0
            return None
        error = self.files.finish_sync(sync)
        self.unsynced = self.files.count_unsynced()
        return error

    def sync(self) -> None:
        """Bring everything to the disk, here and now. Raises OSError."""
        if self.files is not None:
            self.files.finish_syncs_that_ran()
            self.unsynced = self.files.count_unsynced()
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
        """Whether a power cut could take a whole file of this log."""
        return self.files is not None and self.files.new_file

    @property
    def failing(self) -> bool:
        """Whether something must be written again before anything can be called synced."""
        return self.files is not None and self.files.failing

    # ---- what may go

    def limit(self, limits: Limits) -> None:
        """Keep to other limits from now on. Those of a file and of the memory stay as they are."""
        self.limits = limits
        if self.files is not None:
            self.files.limits = limits

    def held_from(self, position: int) -> tuple[int, int]:
        """How many bytes, in how many files, are needed to keep everything from a position on."""
        if self.files is None or position >= self.end:
            return 0, 0
        return self.files.held_from(position)

    def expires(self, now: float) -> bool:
        """Whether the archive has more of the log, or older parts, than it is to keep."""
        return self.files is not None and self.files.expires(now)

    def expire(self, low: int, now: float) -> int:
        """Let go of what only the archive has, is to keep no longer, and lies before `low`.

        Returns how many segments that were. Raises OSError.
        """
        if self.files is None:
            return 0
        try:
            return self.files.expire(low, now)
        finally:
            self.first = self.files.first

    @property
    def trimmable(self) -> bool:
        """Whether `trim` could let go of anything, so that asking every channel is worth its cost."""
        return bool(self.tail.chunks) or (self.files is not None and self.files.trimmable)

    def trim(self, low: int, now: float) -> list[Segment]:
        """Let go of what lies before `low` and is not retained; the caller deletes the segments returned."""
        if self.files is None:
            return []
        if self._idle_at == self.end:  # nothing was published since the last call: the memory is better freed
            self.tail.clear()
        self._idle_at = self.end
        return self.trim_files(low, now)

    def lets_go_before(self, low: int, now: float) -> bool:
        """Whether `trim_files` or `expire` could let go of files if nothing before `low` is needed."""
        return self.files is not None and self.files.lets_go_before(low, now)

    def trim_files(self, low: int, now: float) -> list[Segment]:
        """`trim` without letting go of memory: it may be called at any time, the other now and then."""
        if self.files is None:
            return []
        gone = self.files.trim(low, now)
        self.first = self.files.first
        self.unsynced = self.files.count_unsynced()
        return gone

    @property
    def overfull(self) -> bool:
        """Whether a log without files has grown enough since the last `keep` to do it again."""
        return self.tail.overgrown

    def keep(self, needed: Ranges) -> None:
        """Forget what holds none of these positions: for a log without files."""
        self.tail.keep(needed)
        self.first = self.tail.chunks[0].position if self.tail.chunks else self.end

    def close(self, sync: bool = True) -> None:
        """Close every file, after an fsync unless the log is to be deleted. What is not committed is gone.

        Raises OSError when the disk does not hold everything. The log is closed in any case.
        """
        try:
            if sync:
                self.sync()
        finally:
            self.tail.clear()
            if self.files is not None:
                self.files.close()
