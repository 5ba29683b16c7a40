"""Which file the lines of a topic go to: when the next file begins, and which revision of the name it gets.

`Archive` owns the file that is open. It knows no messages and no clock. Its calls block; a topic makes one at
a time, in a thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from .archive_file import ArchiveFile, make_directories
from .encoding import Encoder
from .file_name import FileNames, with_revision
from .moving import move

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Where the files of a topic are, and when a new one begins."""

    output_dir: str
    work_dir: str  # the same directory, unless finished files are moved
    encoder: Callable[[], Encoder]
    compressed: bool = False
    rotate_size: int = 0  # bytes of lines; 0: never
    rotate_interval: float = 0.0  # seconds; 0: never
    skip_empty_files: bool = False
    cut_torn_json: bool = False

    @property
    def moves(self) -> bool:
        return self.work_dir != self.output_dir


class Archive:
    """The files of one topic. Every failure is a DiskError, after which the archive is of no more use."""

    def __init__(self, label: str, names: FileNames, settings: ArchiveSettings) -> None:
        """`label` begins the log lines."""
        self.files = 0  # that were opened
        self._label = label
        self._names = names
        self._settings = settings
        self._file: ArchiveFile | None = None
        self._name = ""  # of the file that was opened last, and <REV> in it
        self._revision = 0
        self._opened_at = 0.0
        self._unsynced: list[bytes] = []  # lines of the open file

    @property
    def durable(self) -> bool:
        """Whether the disk holds all lines that were written."""
        return self._file is None or not self._file.dirty

    # ---- what a topic calls

    def write(self, lines: Sequence[bytes], now: float) -> bool:
        """Append the lines, each with a newline. True if a new file has begun: sync it soon."""
        begun, start = False, 0
        while start < len(lines):
            file = self._file
            if file is None or self._is_due(file, now):
                file = self._next_file(now)
                begun = True
            end = self._fitting(file, lines, start)
            run = lines[start:end] if end - start < len(lines) else lines
            file.write(run)
            self._unsynced += run
            start = end
        return begun

    def tick(self, now: float) -> None:
        """Begin a new file if it is time to, even without a line for it, unless empty files are unwanted."""
        if self._file is None or self._is_due(self._file, now):
            if self._settings.skip_empty_files:
                self.close()
            else:
                self._next_file(now)

    def sync(self) -> None:
        """Return when the disk holds all lines. Those of a file that was deleted meanwhile go to another."""
        while self._file is not None:
            self._file.sync()
            if not self._unsynced or not self._file.is_deleted():
                break
            logger.warning(
                "%s %s was deleted, its last %d lines are written again",
                self._label,
                self._file.path,
                len(self._unsynced),
            )
            lines, self._unsynced = self._unsynced, []
            self._file.close()
            self._file = None
            self.write(lines, self._opened_at)
        self._unsynced = []

    def close(self) -> None:
        """Sync and close the file, and move it out of the work directory. The next line opens another."""
        self.sync()
        file, self._file = self._file, None
        if file is not None:
            deleted = file.is_deleted()
            file.close()
            logger.info("%s closed %s", self._label, file.path)
            if self._settings.moves and not deleted:
                self._move(file.path)

    # ---- rotation

    def _is_due(self, file: ArchiveFile, now: float) -> bool:
        settings = self._settings
        name = self._names.current(now)
        if name != self._name:
            logger.info("%s new filename %s, rotating...", self._label, name)
            return True
        age = now - self._opened_at
        if 0 < settings.rotate_interval < age:
            logger.info("%s %.3fs since last open, rotating...", self._label, age)
            return True
        return self._is_full(file)

    def _is_full(self, file: ArchiveFile) -> bool:
        limit = self._settings.rotate_size
        if 0 < limit < file.size:
            logger.info(
                "%s %s currently %d bytes (> %d), rotating...", self._label, file.path, file.size, limit
            )
            return True
        return False

    def _fitting(self, file: ArchiveFile, lines: Sequence[bytes], start: int) -> int:
        """Where the lines end that go to this file: the last is the first to exceed the limit."""
        limit = self._settings.rotate_size
        if limit <= 0:
            return len(lines)
        size, end = file.size, start
        while end < len(lines) and size <= limit:
            size += len(lines[end]) + 1
            end += 1
        return end

    # ---- opening

    def _next_file(self, now: float) -> ArchiveFile:
        self.close()
        name = self._names.current(now)
        first = 0 if name != self._name else self._revision + 1
        self._name = name
        self._opened_at = now
        make_directories(os.path.dirname(os.path.join(self._settings.work_dir, name)))
        for self._revision in count(first):
            file = self._try(with_revision(name, self._revision))
            if file is not None:
                self._file = file
                self.files += 1
                return file
        raise AssertionError("revisions do not end")

    def _try(self, name: str) -> ArchiveFile | None:
        """Open this revision; None if the next one must be tried."""
        settings = self._settings
        if settings.moves:
            final = os.path.join(settings.output_dir, name)
            if os.path.lexists(final):
                logger.warning("%s output file already exists: %s", self._label, final)
                return None
        path = os.path.join(settings.work_dir, name)
        exclusive = settings.compressed or settings.rotate_interval > 0
        try:
            file = ArchiveFile(
                path, settings.encoder(), exclusive=exclusive, cut_torn_json=settings.cut_torn_json
            )
        except FileExistsError:
            logger.warning("%s working file already exists: %s", self._label, path)
            return None
        logger.info("%s opening %s", self._label, path)
        # Two may append to one file, but only one can move it.
        if self._is_full(file) or (settings.moves and not file.alone):
            file.close()
            return None
        return file

    # ---- moving

    def _move(self, path: str) -> None:
        settings = self._settings
        for revision in count(self._revision):
            target = os.path.join(settings.output_dir, with_revision(self._name, revision))
            try:
                move(path, target)
            except FileExistsError:
                logger.warning("%s destination file already exists: %s", self._label, target)
            else:
                logger.info("%s moved finished file %s to %s", self._label, path, target)
                return
