"""Segments that were fetched from the archive to be read: a folder of bounded size.

A segment is whole and checked when it has its name here. The oldest ones go when others need the room, and
all of them when the disk is full. A reader that has opened a file keeps it for as long as it reads. Every
start begins with an empty folder. What a hand deletes here is fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from nsquark.errors import ArchiveAway
from nsquark.log import Archived, Segment

FOLDER = "archive.fetched"
KEPT = 8  # segments that stay in any case: those that were fetched just now are about to be read

Get = Callable[[str, int, int, int], None]
"""(key, size, CRC, fd): writes an object to a file. Raises ArchiveAway, and OSError if the file refuses."""


class FetchedSegments:
    """Implements `nsquark.log.Store`."""

    def __init__(self, data_path: Path, limit: int, get: Get) -> None:
        """Of at most `limit` bytes, unless the last `KEPT` segments alone have more. Raises OSError."""
        self._folder = data_path / FOLDER
        self._limit = limit
        self._get = get
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Path, int] = OrderedDict()
        self._under_way: dict[Path, int] = {}
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for each in self._folder.iterdir():  # not the folder itself: it may be a link to another disk
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                self._drop(each)

    def path_of(self, archived: Archived) -> Path:
        # the key begins with the node's id, which is the same for all
        return self._folder / archived.key.partition("/")[2].replace("/", "@")

    def fetch(self, segment: Segment) -> None:
        archived, path = segment.archived, segment.path
        assert archived is not None
        with self._lock:
            if path in self._sizes and _is_whole(path, archived.stop):
                self._sizes.move_to_end(path)
                return
            self._sizes.pop(path, None)
            self._make_room(archived.size)
            self._under_way[path] = archived.size
        temporary = path.with_name(path.name + ".tmp")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.lseek(fd, archived.start, os.SEEK_SET)  # a hole before it: offsets stay what they were
                self._get(archived.key, archived.size, archived.crc, fd)
            finally:
                os.close(fd)
            with self._lock:
                os.replace(temporary, path)
                self._sizes[path] = archived.size
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if isinstance(error, ArchiveAway):
                raise
            if error.errno == errno.ENOSPC:
                self._clear()  # publishes need the room, and so does the next attempt
            reason = error.strerror or error
            raise ArchiveAway(f"{archived.key} cannot be kept in {self._folder}: {reason}") from None
        finally:
            with self._lock:
                self._under_way.pop(path, None)

    def forget(self, archived: Archived) -> None:
        with self._lock:
            self._drop(self.path_of(archived))

    @property
    def size(self) -> int:
        """The bytes of the segments that are here."""
        with self._lock:
            return sum(self._sizes.values())

    def _make_room(self, size: int) -> None:
        total = size + sum(self._sizes.values()) + sum(self._under_way.values())
        while total > self._limit and len(self._sizes) >= KEPT:
            path = next(iter(self._sizes))
            total -= self._sizes[path]
            self._drop(path)

    def _clear(self) -> None:
        with self._lock:
            for path in list(self._sizes):
                self._drop(path)

    def _drop(self, path: Path) -> None:
        self._sizes.pop(path, None)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _is_whole(path: Path, size: int) -> bool:
    """Whether the file is still there, and has its size."""
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False
