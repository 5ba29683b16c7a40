"""The descriptors with which logs and journals are written, of all topics of the process.

A topic that is written now and then would keep two descriptors for good. So their number has a limit, an
eighth of what the process may have open. Beyond the limit, files that the disk holds are closed, those first
that were not written for the longest time. The next write opens them again.

A file that waits for an fsync stays open: the kernel tells an error of its pages only to the open
descriptors. At twice the limit the next file to be opened waits for the fsync of another one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

SHARE = 8  # one in so many descriptors of the process
LEAST = 8
LOOKS = 16  # files that are looked at to find one that can be closed


class WrittenFile(Protocol):
    """What is written with one descriptor: the newest file of a log, or a journal."""

    @property
    def written(self) -> int:
        """Another number after every write."""

    def rest(self, wait: bool) -> bool:
        """Close the descriptor until the next write; returns whether it is closed.

        A file that waits for an fsync stays open, unless the caller can `wait` for that.
        """


def close_synced(fd: int) -> None:
    """Close a file that needs no write any more. The system has closed it also where it tells an error."""
    with contextlib.suppress(OSError):
        os.close(fd)


class WrittenFiles:
    """The files that are open for writing. Only the event loop's thread may use this."""

    def __init__(self, limit: int | None = None) -> None:
        """Without a `limit`, it is a share of what the process may have open."""
        self._limit = limit or 0
        self._fixed = limit is not None
        # In the order in which they were opened or looked at last, with what had been written then.
        self._files: dict[WrittenFile, int] = {}

    def __len__(self) -> int:
        return len(self._files)

    @property
    def limit(self) -> int:
        """How many are open before any is closed."""
        if not self._fixed:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._limit = max(LEAST, most // SHARE) if most != resource.RLIM_INFINITY else 1 << 20
        return self._limit

    def add(self, file: WrittenFile) -> None:
        """This file was opened. The caller has made room before."""
        self._files[file] = file.written

    def remove(self, file: WrittenFile) -> None:
        """This file is closed for good, or was never open."""
        self._files.pop(file, None)

    def make_room(self) -> None:
        """Close others if there are many, as another file is about to be opened."""
        number = len(self._files)
        if number < self._limit or number < self.limit:
            return
        # Two for the one that comes, so that a crowd which had to wait for the disk gets smaller.
        if self._close(2) == 0 and number >= 2 * self._limit:
            for file in list(islice(self._files, LOOKS)):
                if self._rested(file, wait=True):
                    break
                self._files[file] = self._files.pop(file)  # its fsync is under way, or has failed

    def shrink(self) -> Iterator[None]:
        """Go back to the limit, as far as files can be closed, with pauses. A timer has this done."""
        for _ in range(len(self._files) - self.limit):
            self._close(1, looks=1)
            yield

    def open_again(self, path: Path, size: int) -> int:
        """Open a file that was closed by `rest` when it had `size` bytes. The caller calls `add`.

        Raises OSError, also if the file is not as it was left.
        """
        self.make_room()
        fd = self._open(path)
        try:
            found = os.fstat(fd).st_size
        except OSError:
            os.close(fd)
            raise
        if found != size:
            os.close(fd)
            raise OSError(errno.EIO, f"{path.name} has {found} bytes, not the {size} that were written")
        return fd

    def _open(self, path: Path) -> int:
        while True:
            try:
                return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            except OSError as error:
                # The process has no descriptor left. The file gave its own up for others: now it gets theirs.
                if error.errno != errno.EMFILE or not self._close(1, looks=len(self._files), used=True):
                    raise

    def _close(self, wanted: int, looks: int = LOOKS, used: bool = False) -> int:
        """Close some that the disk holds; returns how many. Spares files written lately, unless `used`."""
        closed = 0
        for file in list(islice(self._files, looks)):
            if self._look(file, used):
                closed += 1
                if closed == wanted:
                    break
        return closed

    def _look(self, file: WrittenFile, used: bool) -> bool:
        written = file.written
        if (used or written == self._files[file]) and self._rested(file, wait=False):
            return True
        del self._files[file]
        self._files[file] = written  # behind the others
        return False

    def _rested(self, file: WrittenFile, wait: bool) -> bool:
        if not file.rest(wait):
            return False
        self._files.pop(file, None)
        return True


WRITTEN_FILES = WrittenFiles()  # one for all topics, as the limit is that of the process
