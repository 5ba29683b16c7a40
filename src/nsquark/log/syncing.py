"""Bringing a topic log to the disk, and going on where the disk has refused.

A failed fsync tells once that something was lost. The kernel may have dropped the pages it could not write,
or call them clean, so another fsync of the same file succeeds and proves nothing. A segment whose fsync has
failed is therefore written again: copied into a new file that is synced and then takes the old one's name.

    00000000000000000512.log      fsync failed; nothing is appended any more
    00000000000000000512.new      the same bytes, each batch checked by its CRC, on its way to the disk
    00000000000000000739.log      what is published meanwhile

Until the copy is complete, an empty `.doubt` file beside the segment warns the next process, in case this one
is killed: the kernel would show the next process the same pages, and no error. A power cut may take the
`.doubt` file, but then it takes the pages as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .copying import COPY, copy_segment
from .file_names import parse_stem
from .segment import Segment
from .tail import TailChunk

DOUBT = ".doubt"


@dataclass(slots=True, eq=False)
class UnsyncedFile:
    """A file of which the disk may not hold everything, by its last segment."""

    segment: Segment
    synced: int  # the disk holds everything of it before this position, if the directory is synced
    fd: int = -1  # the one it was written with: from when another file is the newest until it is synced
    unopened: bool = False  # another file is the newest, and this one has to be opened to be synced
    in_folder: bool = False  # its directory is synced, so that a power cut does not take the whole file
    failed: bool = False  # an fsync has failed, so that no other fsync proves anything: it must be copied
    copying: bool = False

    @property
    def settled(self) -> bool:
        """Whether the disk holds everything of it."""
        return self.in_folder and not self.failed and self.synced >= self.segment.end

    def sync(self, fd: int) -> None:
        """Bring the file to the disk, here and now. A failure is noted, to be mended later."""
        try:
            os.fdatasync(fd)
            self.synced = self.segment.end
        except OSError:
            self.fail()

    def sync_and_close(self) -> None:
        try:
            self.sync(self.fd)
        finally:
            self.close()

    def fail(self) -> None:
        """Trust no fsync of this file any more."""
        self.failed = True
        with contextlib.suppress(OSError):
            os.close(os.open(self._doubt, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def mend(self) -> None:
        """Note that a synced copy has taken the place of the file."""
        self.failed = False
        self.synced = self.segment.end
        self.segment.close()  # the next read opens the copy
        self.remove_doubt()

    def remove_doubt(self) -> None:
        with contextlib.suppress(OSError):
            self._doubt.unlink(missing_ok=True)

    @property
    def _doubt(self) -> Path:
        return self.segment.path.with_suffix(DOUBT)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LogSync:
    """One attempt to bring everything that is committed to the disk.

    `TopicLog.start_sync` makes it, `run` may be called in any thread, and `TopicLog.finish_sync` takes note
    of the result.
    """

    def __init__(self, directory: Path | None, unsynced: Sequence[UnsyncedFile]) -> None:
        self.files: list[tuple[UnsyncedFile, int, int]] = []  # a descriptor to sync and close, up to where
        self.copies: list[tuple[UnsyncedFile, list[TailChunk]]] = []
        self.unsynced = list(unsynced)
        self.synced: set[UnsyncedFile] = set()
        self.in_folder = False
        self.lost: list[tuple[Segment, str]] = []  # segments of which neither disk nor memory has everything
        self.error: OSError | None = None
        self.ran = False
        self._directory = directory

    def run(self, fsync: Callable[[int], None] | None = None) -> None:
        """Sync, and copy what has to be copied. Never raises OSError: what failed is not in `synced`."""
        fsync = fsync or os.fdatasync
        try:
            for file, fd, _ in self.files:
                try:
                    fsync(fd)
                    self.synced.add(file)
                except OSError as error:
                    self.error = error
                finally:
                    os.close(fd)
            new_names = self.copies or not all(each.in_folder for each in self.unsynced)
            if self._directory is not None and new_names:
                self._sync_folder(self._directory, fsync)
        except OSError as error:
            self.error = error
        finally:
            self.ran = True

    def _sync_folder(self, directory: Path, fsync: Callable[[int], None]) -> None:
        # By a descriptor: the topic may be deleted meanwhile, and another topic may get its name.
        folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for file, chunks in self.copies:
                try:
                    self._copy(file.segment, chunks, folder, fsync)
                    self.synced.add(file)
                except OSError as error:
                    self.error = error
            # The disk holds a new file only once its directory is synced. A failed fsync of a directory can
            # be repeated, unlike that of a file: the file system keeps its changes in its own log, or stops.
            fsync(folder)
        finally:
            os.close(folder)
        parent = os.open(directory.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fsync(parent)
        finally:
            os.close(parent)
        self.in_folder = True

    def _copy(
        self, segment: Segment, chunks: Sequence[TailChunk], folder: int, fsync: Callable[[int], None]
    ) -> None:
        lost = copy_segment(segment, chunks, folder, fsync)
        if lost:
            bytes_lost = ", ".join(f"bytes {start} to {end}" for start, end in lost)
            name = segment.path.name
            self.lost.append((segment, f"{name}: the disk has lost something of {bytes_lost}"))


def take_up_doubts(directory: Path, names: Sequence[str]) -> set[int]:
    """Delete copies that a crash has left unfinished; returns the files (by position) whose fsync failed.

    `names` are those of all files of the directory.
    """
    for name in names:
        if name.endswith(COPY):
            (directory / name).unlink(missing_ok=True)  # the file that was being copied is still there
    doubted = (parse_stem(name.removesuffix(DOUBT)) for name in names if name.endswith(DOUBT))
    return {parsed[0] for parsed in doubted if parsed is not None}
