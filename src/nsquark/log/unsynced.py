"""Which files of a log the disk may not hold, from the oldest to the newest, which is being written."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from .segment import Segment
from .syncing import LogSync, UnsyncedFile
from .tail import TailChunk

MOST_OPEN = 64  # files of a log that are full, wait for an fsync and are kept open for it


class UnsyncedFiles:
    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: list[UnsyncedFile] = []
        self._syncs: list[LogSync] = []  # under way

    def take_up(self, segments: Sequence[Segment], doubted: set[int]) -> None:
        """Begin with the files of an earlier process.

        The newest is one of them: that process may have been killed before it could sync it.
        """
        last_of_file = {segment.path: segment for segment in segments}
        for segment in last_of_file.values():
            base = segment.file_base
            if base in doubted or segment is segments[-1]:
                self._files.append(UnsyncedFile(segment, base, failed=base in doubted))

    def limit_open_files(self) -> None:
        """Sync the oldest file that is kept open, if there are too many of them.

        So many files between two fsyncs are tiny. Waiting for the disk keeps the descriptors few.
        """
        waiting = [file for file in self._files if file.fd >= 0]
        if len(waiting) >= MOST_OPEN:
            waiting[0].sync_and_close()

    def roll(self, fd: int, segment: Segment) -> None:
        """Go on with `segment` as the newest. The file before it was written with the descriptor `fd`.

        That is -1 if that file is not open.
        """
        old = self._files[-1]
        old.fd = fd
        old.unopened = fd < 0 and old.synced < old.segment.end
        self._files.append(UnsyncedFile(segment, segment.base))

    def newest_is_final(self) -> bool:
        """Whether the newest file must be copied, so that nothing may be appended to it any more."""
        newest = self._files[-1]
        if newest.failed and not newest.segment.size:
            newest.failed = False  # the file is empty: nothing was lost
            newest.remove_doubt()
        return newest.failed

    def newest_is_on_disk(self, fd: int) -> bool:
        """Whether the disk holds everything of the newest file, so that it may be closed.

        If the caller gives its descriptor `fd`, the file is synced here and now. A failure is noted, to be
        mended later.
        """
        newest = self._files[-1]
        if newest.synced < newest.segment.end and fd >= 0 and not newest.failed and not self._syncs:
            newest.sync(fd)
        return not newest.failed and newest.synced >= newest.segment.end

    def start_nothing(self) -> LogSync:
        """A sync for a log that has no file, or is closed."""
        sync = LogSync(None, ())
        self._syncs.append(sync)
        return sync

    def start(self, fd: int, end: int, chunks: Sequence[TailChunk]) -> LogSync:
        """A sync of everything up to the position `end`. The newest file is written with the descriptor `fd`.

        A file that is not open (`fd` is -1) is opened for it, unless the disk holds all of it.
        `chunks` are those in memory. Raises OSError, and nothing has changed.
        """
        opened = self._open_for_sync(fd)
        sync = LogSync(self._directory, self._files)
        for file in self._files[:-1]:
            if file.failed:
                file.close()
                if not file.copying:
                    file.copying = True
                    sync.copies.append((file, [each for each in chunks if each.segment is file.segment]))
            elif file.fd >= 0:
                sync.files.append((file, file.fd, file.segment.end))
                file.fd = -1
            elif file in opened:
                sync.files.append((file, opened[file], file.segment.end))
                file.unopened = False
        newest = self._files[-1]
        if newest in opened:
            sync.files.append((newest, opened[newest], end))
        self._syncs.append(sync)
        return sync

    def _open_for_sync(self, fd: int) -> dict[UnsyncedFile, int]:
        """Descriptors for the newest file, and for those that were left when they were not open."""
        opened: dict[UnsyncedFile, int] = {}
        newest = self._files[-1]
        try:
            for file in self._files[:-1]:
                if file.unopened and not file.failed:
                    opened[file] = os.open(file.segment.path, os.O_WRONLY | os.O_CLOEXEC)
            if fd >= 0:
                opened[newest] = os.dup(fd)
            elif newest.synced < newest.segment.end:
                opened[newest] = os.open(newest.segment.path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            for each in opened.values():
                os.close(each)
            raise
        return opened

    def finish(self, sync: LogSync, segments: Sequence[Segment]) -> OSError | None:
        """Take note of what is on the disk. Returns why the disk does not hold everything, if it does not.

        "Everything" is what was committed when the sync was started. `segments` are those of the log now.
        """
        if sync in self._syncs:
            self._syncs.remove(sync)
            for file, _, position in sync.files:
                if file not in sync.synced:
                    file.fail()
                elif not file.failed:
                    file.synced = max(file.synced, position)
            for file, _ in sync.copies:
                file.copying = False
                if file in sync.synced:
                    file.mend()
                    self._distrust(file.segment.path, segments)
            for file in sync.unsynced:
                # The name of a copy is new to the directory, though the name of the file was not.
                file.in_folder = sync.in_folder or (file.in_folder and not sync.copies)
            self._files[:-1] = [file for file in self._files[:-1] if not file.settled]
        if sync.error is None and any(file.failed for file in sync.unsynced):
            return OSError(errno.EIO, "an fsync before this one has failed")
        if sync.error is None and sync.lost:
            return OSError(errno.EIO, sync.lost[0][1])
        return sync.error

    def _distrust(self, path: Path, segments: Sequence[Segment]) -> None:
        """Have the segments of a file that was copied verified again: something of it may be lost."""
        for segment in segments:
            if segment.path == path:
                segment.close()
                segment.verified = False

    def finish_those_that_ran(self, segments: Sequence[Segment]) -> None:
        for sync in [each for each in self._syncs if each.ran]:
            self.finish(sync, segments)

    def count(self, end: int) -> int:
        """How many of the messages before `end` the disk may not hold."""
        for file in self._files:
            if not file.settled:
                return end - (file.synced if file.in_folder else file.segment.file_base)
        return 0

    @property
    def new_file(self) -> bool:
        """Whether a power cut could take a whole file of this log."""
        return not all(file.in_folder for file in self._files)

    @property
    def failing(self) -> bool:
        """Whether something must be written again before anything can be called synced."""
        return any(file.failed for file in self._files)

    def forget(self, deleted: set[Path]) -> None:
        """Leave out files that are being deleted: they need not be synced."""
        for file in [each for each in self._files if each.segment.path in deleted]:
            file.close()
            if file.failed:
                file.remove_doubt()
            self._files.remove(file)

    def close(self) -> None:
        """Close the files. The results of syncs that are under way do not matter any more."""
        for file in self._files:
            file.close()
        self._syncs.clear()
