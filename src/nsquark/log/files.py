"""The files of a log: appended to, rolled, synced and deleted.

A log has at least one file, and appends to the newest. A file is one segment, or several if it was damaged.
Segments that only the archive has come beside them: see `taking_up`.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from pathlib import Path

from nsquark import changes
from nsquark.errors import LogCorrupt

from .archived import EXPIRED, Expired, Store, record_name
from .damage import Record
from .deferred import Deferred
from .opening import Inspected, inspect, take_up
from .ranges import Ranges
from .retention import Limits, count_archived, count_deletable, is_beyond_archive, is_retained, size_of
from .segment import Segment
from .syncing import LogSync, take_up_doubts
from .tail import TailChunk
from .taking_up import take_up_archive
from .unsynced import UnsyncedFiles
from .written_files import WRITTEN_FILES, close_synced

ROLL_WHEN_CONSUMED = 1 << 20  # bytes of the newest file, if nothing in it is needed
ROLL_WHEN_NEARLY_CONSUMED = 64 << 20  # bytes of the newest file, if a quarter of it is needed at most
MOST_EXPIRED = 100  # segments that leave the log at a time: each is a rename
TRIM_EVERY = 64 << 20  # bytes that the newest file grows by


class LogFiles:
    """The segments in `directory`, in the order of their positions; the last one is the newest.

    `torn` says that the newest file may have bytes behind its last whole batch.
    """

    def __init__(
        self,
        directory: Path,
        limits: Limits,
        floor: int,
        inspected: Inspected | None,
        term: int = 0,
        store: Store | None = None,
        grown: Callable[[], object] | None = None,
    ) -> None:
        """Open what an earlier process has left in the directory, or begin a first file at position `floor`.

        Files that are begun have the term in their names; those of an earlier term are not appended to.
        Without a `store`, what is only in the archive does not belong to the log. `grown` is called when the
        log has grown so much that a `trim` is worth its cost.
        Raises OSError and UnknownVersion. Damaged bytes are kept aside before they are cut off or left out.
        """
        self.directory = directory
        self.limits = limits
        self.term = term  # of the files that are begun
        self.max_bytes_per_file = limits.max_bytes_per_file
        self.torn = False
        if inspected is None:
            inspected = inspect(directory)
        if not inspected.names:  # else the directory is there
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        doubted = take_up_doubts(directory, inspected.names)
        found = take_up(directory, inspected)
        self.segments = found.segments
        if self.segments:
            self.term = max(term, self.segments[-1].term)
        self.deferred: list[Deferred] = found.deferred  # the deferred batches of the newest file
        self.lost: Ranges = found.lost  # positions whose messages were damaged
        self.records: list[Record] = found.records  # of damage, those that no operator has acknowledged
        self.found: list[Record] = found.found  # of those, the ones that were found just now
        self.cut: tuple[Path, int] | None = found.cut  # the file whose torn tail was cut off, and its bytes
        self.store = store
        self.archived: list[Segment] = []  # those that only the archive has, in order
        self.archived_size = 0  # their bytes
        self.expired: list[Expired] = []  # what the archive is to let go of, and is no part of the log
        self.unread: list[
            tuple[Path, str]
        ] = []  # files that should say what the archive has, and do not read
        if store is not None:
            floor = max(floor, self._take_up_archive(store))
        self._drop_empty_of_earlier_term()
        self.fd = -1  # while the newest file is not open: the next write opens it
        self._closed = False
        self._grown = grown
        self._full = 0  # a write that would make the newest file larger than this looks what is to be done
        if not self.segments:
            self.fd = self._create(floor)
            WRITTEN_FILES.add(self)
        self._unsynced = UnsyncedFiles(directory)
        self._unsynced.take_up(self.segments, doubted)
        if self.segments[-1].term != self.term or self.segments[-1].archived is not None:
            self._roll()  # no more may come to a file that is archived
        self._look_again_later()

    def _take_up_archive(self, store: Store) -> int:
        """Take up what the archive has; returns where that ends. Raises OSError and UnknownVersion."""
        found = take_up_archive(self.directory, self.segments, store, self.lost)
        self.segments, self.archived, self.unread = found.here, found.there, found.unread
        self.archived_size = size_of(self.archived)
        self.expired = found.expired
        for path in found.leftovers:
            path.unlink(missing_ok=True)
            changes.tell_deleted(path)
        end = self.archived[-1].end if self.archived else 0
        if self.segments and self.segments[-1].end < end:
            os.close(self._create(end))
        return end

    def _drop_empty_of_earlier_term(self) -> None:
        """Delete a newest file without a byte that this term may not write to: the next has its position."""
        if self.segments and self.segments[-1].size == 0 and self.segments[-1].term != self.term:
            if len(self.segments) == 1 or self.segments[-2].path != self.segments[-1].path:
                empty = self.segments[-1]
                os.close(self._create(empty.base))
                self.segments.remove(empty)
                empty.delete()

    def _create(self, base: int) -> int:
        """Begin a file that becomes the newest; returns the descriptor to write it with. Raises OSError."""
        segment = Segment(self.directory, base, None, 0, self.term)
        segment.modified = time.time()
        WRITTEN_FILES.make_room()
        fd = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if changes.listeners:
            changes.tell_created(segment.path)
        self.segments.append(segment)
        return fd

    @property
    def first(self) -> int:
        """The first position of the oldest file, or of the archive."""
        here = self.local_first
        return min(self.archived[0].base, here) if self.archived else here

    @property
    def local_first(self) -> int:
        """The first position of the oldest file."""
        return self.segments[0].file_base

    @property
    def end(self) -> int:
        """The position behind the last message."""
        return self.segments[-1].end

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return size_of(self.segments)

    # ---- writing

    def write(self, data: bytes, size: int) -> Segment:
        """Append to the newest file, or to another one if that has no room; returns the segment.

        Raises OSError, and then nothing of it is in the files. The caller adds to the segment what it wrote.
        """
        segment: Segment = self.segments[-1]
        if self.torn or (segment.size and segment.size + size > self._full):
            self._make_room(size)
            segment = self.segments[-1]
        if self.fd < 0:
            self._open_again()
        try:
            done = os.write(self.fd, data)
            while done < size:
                done += os.write(self.fd, memoryview(data)[done:])
        except OSError:
            self.torn = True
            self._mend()  # so that the next write can follow
            raise
        if changes.listeners:
            changes.tell_appended(segment.path, segment.size, data)
        return segment

    def _make_room(self, size: int) -> None:
        """Cut off what a failed write has left, and begin another file if the newest has no room."""
        if self.torn:
            self._mend()
        newest = self.segments[-1].size
        if not newest or newest + size <= self._full:
            return
        if newest + size > self.max_bytes_per_file:
            self._roll()
        else:
            self._look_again_later()
        if self._grown is not None:
            self._grown()

    def _look_again_later(self) -> None:
        self._full = min(self.max_bytes_per_file, self.segments[-1].size + TRIM_EVERY)

    def _mend(self) -> None:
        os.ftruncate(self.fd, self.segments[-1].size)
        self.torn = False

    def _open_again(self) -> None:
        """Open the newest file for writing. Raises OSError."""
        if self._closed:
            raise OSError(errno.EBADF, "the log is closed")
        newest = self.segments[-1]
        self.fd = WRITTEN_FILES.open_again(newest.path, newest.size)
        WRITTEN_FILES.add(self)

    @property
    def written(self) -> int:
        return self.end

    def rest(self, wait: bool) -> bool:
        """Close the newest file until the next write, if the disk holds all of it: see `WrittenFile`."""
        if self.torn or not self._unsynced.newest_is_on_disk(self.fd if wait else -1):
            return False
        fd, self.fd = self.fd, -1
        close_synced(fd)
        return True

    def _roll(self) -> None:
        """Begin another file. Raises OSError, and the log goes on with the one it has."""
        old = self.segments[-1]
        self._unsynced.limit_open_files()
        fd = self._create(old.end)
        old.modified = time.time()
        self._unsynced.roll(self.fd, self.segments[-1])
        self.fd = fd
        self._look_again_later()
        WRITTEN_FILES.add(self)

    # ---- reading

    def segment_at(self, position: int) -> Segment:
        """The segment that holds this position, or the first one behind it."""
        at = bisect_right(self.segments, position, key=_base_of) - 1
        if self.archived and (at < 0 or position >= self.segments[at].end):
            far = bisect_right(self.archived, position, key=_base_of) - 1
            if far >= 0 and (at < 0 or self.archived[far].base > self.segments[at].base):
                return self.archived[far]
        return self.segments[max(at, 0)]

    def segment_after(self, segment: Segment) -> Segment | None:
        at = bisect_right(self.segments, segment.base, key=_base_of)
        following = self.segments[at] if at < len(self.segments) else None
        if self.archived:
            far = bisect_right(self.archived, segment.base, key=_base_of)
            if far < len(self.archived) and (following is None or self.archived[far].base < following.base):
                return self.archived[far]
        return following

    # ---- damage

    def suspect(self, error: LogCorrupt) -> Segment | None:
        """The segment that did not read as it was written. The caller has to verify it (again).

        None where that would not help: the segment is gone, or has been suspected before. Raises OSError.
        In any case nobody else goes on with what was read of it before.
        """
        for segment in self.segments:
            if str(segment.path) == error.segment and segment.start <= error.offset <= segment.size:
                if segment.suspected and not segment.verified:
                    return segment  # another reader has found it out, too
                segment.close()
                if segment.suspected:
                    return None
                if segment is self.segments[-1]:
                    self._roll()
                segment.verified, segment.suspected = False, True
                return segment
        return self._suspect_fetched(error)

    def _suspect_fetched(self, error: LogCorrupt) -> Segment | None:
        """The same for a segment that was fetched from the archive: it is fetched once more."""
        for segment in self.archived:
            if str(segment.path) == error.segment and self.store is not None:
                segment.close()
                assert segment.archived is not None
                self.store.forget(segment.archived)
                segment.verified, segment.suspected = False, True
                return segment
        return None

    def leave_out(self, segment: Segment) -> list[Record]:
        """Go on without the parts of a segment that `verify` has found damaged; returns what is lost."""
        if segment not in self.segments:
            return []
        at = self.segments.index(segment)
        if segment.archived is not None and self.store is not None:
            del self.segments[at]
            file = self._leave_to_archive(segment, self.store)
            if all(each.path != file.path for each in self.segments):
                self._unsynced.forget({file.path})
                file.delete()
            return []
        self.segments[at : at + 1] = segment.pieces or [segment.nothing_left()]
        known = {each.path for each in self.records}
        for record in segment.lost:
            self.lost.add(*record.lost)
            if not record.acknowledged and record.path not in known:
                self.records.append(record)
        segment.close()
        return segment.lost

    # ---- what the disk holds

    def start_sync(self, chunks: Sequence[TailChunk]) -> LogSync:
        """An attempt to sync; `chunks` are those in memory. Raises OSError: see `TopicLog.start_sync`."""
        if self._closed:
            return LogSync(None, ())
        if self._unsynced.newest_is_final():
            self._roll()
        return self._unsynced.start(self.fd, self.end, chunks)

    def finish_sync(self, sync: LogSync) -> OSError | None:
        """Take note of what is on the disk; returns why not everything is that was there when it started."""
        return self._unsynced.finish(sync, self.segments)

    def finish_syncs_that_ran(self) -> None:
        self._unsynced.finish_those_that_ran(self.segments)

    def count_unsynced(self) -> int:
        """How many messages the disk may not hold."""
        return self._unsynced.count(self.end)

    @property
    def new_file(self) -> bool:
        """Whether a power cut could take a whole file of this log."""
        return self._unsynced.new_file

    @property
    def failing(self) -> bool:
        """Whether something must be written again before anything can be called synced."""
        return self._unsynced.failing

    # ---- what may go

    def held_from(self, position: int) -> tuple[int, int]:
        """The bytes of the segments that hold this position and everything behind it, and how many files."""
        at = max(bisect_right(self.segments, position, key=_base_of) - 1, 0)
        held = self.segments[at:]
        return size_of(held), len({segment.path for segment in held})

    @property
    def trimmable(self) -> bool:
        """Whether `trim` could let go of anything."""
        return len(self.segments) > 1 or self.segments[0].size >= ROLL_WHEN_CONSUMED

    def lets_go_before(self, low: int, now: float) -> bool:
        """Whether `trim` or `expire` could let go of anything if nothing before `low` is needed."""
        oldest = self.archived[0] if self._is_beyond_archive(now) else self.segments[0]
        return low >= oldest.end or self._is_consumed(low)

    def _is_consumed(self, low: int) -> bool:
        """Whether so little of the newest file is needed that another file had better follow.

        The newest file can then be deleted soon. In an archive it would be a small piece, so there only a
        file of which nothing is needed makes way.
        """
        newest = self.segments[-1]
        if low >= self.end:
            return newest.size >= ROLL_WHEN_CONSUMED
        if newest.size < ROLL_WHEN_NEARLY_CONSUMED or low <= newest.base or self.store is not None:
            return False
        _, offset = newest.mark_before(low, newest.size)
        return newest.size - offset <= newest.size // 4

    def trim(self, low: int, now: float) -> list[Segment]:
        """Let go of what lies before `low` and is not retained; the caller deletes the segments returned."""
        if self._is_consumed(low) and not is_retained(self.limits, self.size, 0.0):
            self._roll()
        number = count_deletable(self.segments, low, self.limits, now)
        if self.store is not None:
            number = min(number, count_archived(self.segments))
        gone = self.segments[:number]
        if gone:
            del self.segments[:number]
            self._unsynced.forget({segment.path for segment in gone})
            if self.store is not None:
                for at, segment in enumerate(gone):
                    if segment.archived is not None:
                        gone[at] = self._leave_to_archive(segment, self.store)
        self.lost.drop_below(self.first)
        return gone

    # ---- the archive

    def next_to_archive(self, before: int) -> Segment | None:
        """The oldest segment that nothing comes to any more, that ends by `before`, and is not archived."""
        newest = self.segments[-1].path
        for segment in self.segments:
            if segment.path == newest or segment.end > before:
                return None
            if segment.archived is None and not segment.empty:
                return segment
        return None

    def expires(self, now: float) -> bool:
        """Whether the archive has more of the log, or older parts, than it is to keep."""
        return bool(self.archived) and self._is_beyond_archive(now)

    def _is_beyond_archive(self, now: float) -> bool:
        limits = self.limits
        if not self.archived or not (limits.archive_bytes or limits.archive_time):
            return False
        oldest = self.archived[0]
        if oldest.base >= self.local_first:  # a part of the disk lies before it
            return False
        size = self.archived_size
        if limits.archive_bytes and size <= limits.archive_bytes:
            size += size_of([each for each in self.segments if each.archived is not None])
        return is_beyond_archive(limits, size, now - oldest.modified)

    def expire(self, low: int, now: float) -> int:
        """Have what only the archive has, and is to keep no longer, be no part of the log; returns how much.

        Nothing from the position `low` on goes, and no more than `MOST_EXPIRED` segments at once. The files
        beside the log say first what goes, so that a start has it as `expired`, too. Raises OSError.
        """
        number = 0
        while number < MOST_EXPIRED and self._is_beyond_archive(now):
            oldest = self.archived[0]
            if oldest.end > low:
                break
            archived = oldest.archived
            assert archived is not None
            old = self.directory / record_name(archived)
            new = self.directory / record_name(archived, EXPIRED)
            os.rename(old, new)
            changes.tell_renamed(old, new)
            del self.archived[0]
            self.archived_size -= oldest.size - oldest.start
            oldest.close()
            self.expired.append(Expired(archived, new))
            number += 1
        self.lost.drop_below(self.first)
        return number

    @property
    def unarchived_size(self) -> int:
        """The bytes of the segments that nothing comes to any more and that are not archived."""
        newest = self.segments[-1].path
        return size_of([each for each in self.segments if each.archived is None and each.path != newest])

    def _leave_to_archive(self, segment: Segment, store: Store) -> Segment:
        """Have a segment only in the archive; returns one for its file, which can be deleted."""
        file = segment.leave_to(store)
        insort(self.archived, segment, key=_base_of)
        self.archived_size += segment.size - segment.start
        return file

    def close(self) -> None:
        self._unsynced.close()
        self._closed = True
        WRITTEN_FILES.remove(self)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        for segment in (*self.segments, *self.archived):
            segment.close()


def _base_of(segment: Segment) -> int:
    return segment.base
