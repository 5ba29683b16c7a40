"""Bringing a topic log to the disk, and going on where the disk has refused.

A failed fsync tells once that something was lost. The kernel may have dropped the pages it could not write,
or call them clean, so another fsync of the same file succeeds and proves nothing. A segment whose fsync has
failed is therefore written again: copied into a new file that is synced and then takes the old one's name.

    00000000000000000512.log      fsync failed; nothing is appended any more
    00000000000000000512.new      the same bytes, each batch checked by its CRC, on its way to the disk
    00000000000000000739.log      what is published meanwhile

The copy has the same bytes at the same offsets, so positions, indexes and cursors stay as they are, and there
is one file of each name before, during and after it: a crash at any moment leaves one of the two.

Until then an empty `.doubt` beside the segment tells the next process, should this one be killed: the kernel
would show it the same pages and say no more about them. A power cut may take that file, and takes the pages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsquark import kernel

from .ranges import Ranges
from .segment import Segment

COPY = ".new"
DOUBT = ".doubt"
WINDOW = 1 << 20
SECTOR = 4096
_NO_MARKS = 1 << 62


@dataclass(slots=True, eq=False)
class Owed:
    """A segment of which the disk may not hold everything."""

    segment: Segment
    synced: int  # everything of it before this position is on the disk, if its folder is
    fd: int = -1  # that it was written with, once another segment is the newest and until it is synced
    in_folder: bool = False  # a power cut does not take the whole file
    failed: bool = False  # an fsync did, so that no other one says anything: it must be copied
    copying: bool = False

    @property
    def settled(self) -> bool:
        return self.in_folder and not self.failed and self.synced >= self.segment.end

    def sync(self) -> None:
        """Bring the file to the disk, here and now, and close it. A failure is noted, to be mended later."""
        try:
            os.fdatasync(self.fd)
            self.synced = self.segment.end
        except OSError:
            self.fail()
        finally:
            self.drop()

    def fail(self) -> None:
        """Trust no fsync of this file any more."""
        self.failed = True
        with contextlib.suppress(OSError):
            os.close(os.open(self._doubt, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def mend(self) -> None:
        """It has been copied."""
        self.failed = False
        self.synced = self.segment.end
        self.segment.close()  # whoever reads on opens the copy
        self.forget()

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self._doubt.unlink(missing_ok=True)

    @property
    def _doubt(self) -> Path:
        return self.segment.path.with_suffix(DOUBT)

    def drop(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class LogSync:
    """One try to bring everything that is committed to the disk. Made by `TopicLog.start_sync`, `run` in any
    thread, and given to `TopicLog.finish_sync`.
    """

    def __init__(self, directory: Path | None, owed: Sequence[Owed]) -> None:
        self.files: list[tuple[Owed, int, int]] = []  # descriptor to sync and close, what that is good for
        self.copies: list[tuple[Owed, list[kernel.Chunk]]] = []
        self.owed = list(owed)
        self.synced: set[Owed] = set()
        self.in_folder = False
        self.lost: list[tuple[Segment, str]] = []  # segments of which neither disk nor memory has everything
        self.error: OSError | None = None
        self.ran = False
        self._directory = directory

    def run(self, fsync: Callable[[int], None] | None = None) -> None:
        """Never raises OSError: what failed is not among what is `synced`."""
        fsync = fsync or os.fdatasync
        try:
            for owed, fd, _ in self.files:
                try:
                    fsync(fd)
                    self.synced.add(owed)
                except OSError as error:
                    self.error = error
                finally:
                    os.close(fd)
            if self._directory is not None and (self.copies or not all(each.in_folder for each in self.owed)):
                self._sync_folder(self._directory, fsync)
        except OSError as error:
            self.error = error
        finally:
            self.ran = True

    def _sync_folder(self, directory: Path, fsync: Callable[[int], None]) -> None:
        # Held by a descriptor: the topic may be deleted meanwhile, and another one have its name.
        folder = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for owed, chunks in self.copies:
                try:
                    self._copy(owed.segment, chunks, folder, fsync)
                    self.synced.add(owed)
                except OSError as error:
                    self.error = error
            # A file is only there for good once its folder says so. Unlike the pages of a file, what a folder
            # could not write is not forgotten: its file system keeps it in a log of its own, or stops.
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
        self, segment: Segment, chunks: Sequence[kernel.Chunk], folder: int, fsync: Callable[[int], None]
    ) -> None:
        name = segment.path.name
        copy_name = segment.path.with_suffix(COPY).name
        old = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            copy = os.open(copy_name, flags, 0o600, dir_fd=folder)
            try:
                lost = Ranges()
                for data, offset, whole in _pieces(old, segment.start, segment.size, chunks):
                    size = data if isinstance(data, int) else len(data)
                    if not whole:
                        lost.add(offset, offset + size)
                    if isinstance(data, int):  # a hole, so that everything behind it stays where it is
                        os.lseek(copy, size, os.SEEK_CUR)
                    else:
                        write_all(copy, data)
                os.ftruncate(copy, segment.size)
                fsync(copy)
                os.rename(copy_name, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(copy_name, dir_fd=folder)
                raise
            finally:
                os.close(copy)
        finally:
            os.close(old)
        if lost:
            bytes_lost = ", ".join(f"bytes {start} to {end}" for start, end in lost)
            self.lost.append((segment, f"{name}: the disk has lost something of {bytes_lost}"))


def _pieces(
    fd: int, start: int, size: int, chunks: Sequence[kernel.Chunk]
) -> Iterator[tuple[bytes | memoryview | int, int, bool]]:
    """All of a file whose last segment begins at `start`: runs of whole batches from the file, or from memory
    where the file has none, the offset of each, and True.

    What neither has comes as it is, and with False: there may be whole batches behind what is damaged, and
    who reads it next finds them. What lies before `start` belongs to other segments and to damage between
    them.
    """
    for data, offset in _as_it_is(fd, 0, start):
        yield data, offset, not isinstance(data, int)
    offset, window = start, WINDOW
    while offset < size:
        try:
            data = os.pread(fd, min(window, size - offset), offset)
        except OSError:
            data = b""
        stop, needed, _, _ = kernel.scan_batches(data, 0, len(data), True, _NO_MARKS)
        if stop:
            yield memoryview(data)[:stop], offset, True
            offset, window = offset + stop, WINDOW
        elif len(data) == window < needed <= size - offset:
            window = needed
        else:
            chunk = next((each for each in chunks if each.offset + len(each.data) > offset), None)
            if chunk is not None and chunk.offset <= offset:
                rest = memoryview(chunk.data)[offset - chunk.offset :]
                yield rest, offset, True
                offset += len(rest)
            else:
                end = chunk.offset if chunk is not None else size
                for piece, at in _as_it_is(fd, offset, end):
                    yield piece, at, False
                offset = end


def _as_it_is(fd: int, offset: int, end: int) -> Iterator[tuple[bytes | int, int]]:
    """The bytes [offset, end) of a file and where they lie; how many there are, where they cannot be read."""
    while offset < end:
        try:
            data = os.pread(fd, min(WINDOW, end - offset), offset)
        except OSError:
            data = b""
        if not data:
            size = min(SECTOR - offset % SECTOR, end - offset)
            with contextlib.suppress(OSError):
                data = os.pread(fd, size, offset)
            if not data:
                yield size, offset
                offset += size
                continue
        yield data, offset
        offset += len(data)


def take_up(directory: Path) -> set[int]:
    """Delete the copies that a crash has left unfinished; returns the segments whose fsync has failed."""
    for path in directory.glob("*" + COPY):
        path.unlink(missing_ok=True)  # the file of the same name is still there
    return {int(path.stem) for path in directory.glob("*" + DOUBT) if path.stem.isdigit()}


def write_all(fd: int, data: kernel.Buffer) -> None:
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])
