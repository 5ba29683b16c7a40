"""The follower's data directory: applying operations, and putting aside what the primary does not have.

What does not fit is moved to `.diverged/` and never deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from nsquark import kernel
from nsquark.durable import replace_file, sync_path
from nsquark.errors import NsquarkError

from ..changes.frames import APPEND, BATCHES, CREATE, CUT, DELETE, PUT, RENAME, Frame, Operation, is_copied
from ..changes.manifest import list_files

STATE = "nsquark.replica"  # while it is there, the directory is a copy, and no ordinary one
DIVERGED = ".diverged"
ANEW = ".anew.tmp"  # behind the name of a file that is fetched as a whole, until it is
_ALL = 1 << 62
MOST_OPEN = 256
SYNCED_AT_ONCE = 64  # files that are open at a time where very many are synced
MOST_TO_OPEN = 256  # files that wait for `sync` open, each with its folder


class CopyDiffers(NsquarkError):
    """An operation does not fit the copy: it has to catch up again."""


class FsyncFailed(OSError):
    """An fsync has failed, once. The next one may succeed although the bytes of these `paths` are lost.

    The operating system may have dropped the pages that it could not write, or call them clean.
    """

    def __init__(self, error: OSError, paths: frozenset[str]) -> None:
        super().__init__(error.errno, error.strerror)
        self.paths = paths


class Unsynced(NamedTuple):
    """What an fsync is for: the files by their paths, and they and their folders, open.

    `descriptors` is None where the files are too many to be open at the same time.
    """

    directory: Path
    paths: frozenset[str]
    descriptors: list[int] | None


class WarmCopy:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._diverged = directory / DIVERGED / f"{time.time_ns()}"
        self._open: dict[str, tuple[int, int]] = {}  # descriptor and size, in the order of their last use
        self._unsynced: set[str] = set()

    # ---- applying

    def apply(self, frame: Frame, lenient: bool) -> None:
        """Do what the primary has done.

        `lenient` is for frames that may be older than the copied files: what is done already is done again,
        and files that are gone stay so. Raises CopyDiffers and OSError.
        """
        for operation in frame.operations:
            letter = operation.letter
            if letter in (BATCHES, APPEND):
                self._append(operation, lenient)
            elif letter == PUT:
                self._put(operation)
            elif letter == CREATE:
                self._forget(operation.path)
                os.close(self._create(operation.path, os.O_TRUNC))
                self._unsynced.add(operation.path)
            elif letter == CUT:
                self._forget(operation.path)
                with _tolerating(operation, lenient):
                    self._cut(operation, lenient)
            elif letter == RENAME:
                self._rename(operation, lenient)
            elif letter == DELETE:
                self._delete(operation)

    def _append(self, operation: Operation, lenient: bool) -> None:
        path, offset, data = operation.path, operation.offset, operation.data
        length = len(data)
        if operation.letter == BATCHES and kernel.scan_batches(data, 0, length, True, _ALL)[0] < length:
            raise CopyDiffers(f"{path}: a batch at offset {offset} is damaged")
        known = self._open.pop(path, None)
        if known is None:
            try:
                known = self._descriptor(path, create=offset == 0)
            except FileNotFoundError:
                if lenient:
                    return
                raise CopyDiffers(f"{path} is not there") from None
        fd, size = self._open[path] = known
        if offset > size or (offset != size and not lenient):
            raise CopyDiffers(f"{path} has {size} bytes, and more are to be added at {offset}")
        done = os.pwrite(fd, data, offset)
        while done < length:  # a disk that is almost full takes less than it is given
            done += os.pwrite(fd, memoryview(data)[done:], offset + done)
        end = offset + done
        self._open[path] = fd, end if end > size else size
        self._unsynced.add(path)

    def _descriptor(self, path: str, create: bool) -> tuple[int, int]:
        while len(self._open) >= MOST_OPEN:
            self._forget(next(iter(self._open)))
        fd = self._create(path) if create else os.open(self.directory / path, os.O_WRONLY | os.O_CLOEXEC)
        return fd, os.fstat(fd).st_size

    def _create(self, path: str, flags: int = 0) -> int:
        target = self.directory / path
        flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(target, flags, 0o600)
        except FileNotFoundError:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(target, flags, 0o600)

    def _put(self, operation: Operation) -> None:
        target = self.directory / operation.path
        temporary = target.with_name(target.name + ".tmp")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(operation.data)
        self._forget(operation.path)
        os.replace(temporary, target)
        self._unsynced.add(operation.path)

    def _cut(self, operation: Operation, lenient: bool) -> None:
        """A file that is shorter already stays as it is: to cut it would make it longer."""
        path = self.directory / operation.path
        size = path.stat().st_size
        if operation.offset < size:
            os.truncate(path, operation.offset)
        elif operation.offset > size and not lenient:
            raise CopyDiffers(f"{operation.path} has {size} bytes, and is to be cut to {operation.offset}")

    def _rename(self, operation: Operation, lenient: bool) -> None:
        new = bytes(operation.data).decode("utf-8", "replace")
        if not is_copied(new):
            raise CopyDiffers(f"{operation.path} cannot become {new!r}")
        self._forget(operation.path)
        self._forget(new)
        target = self.directory / new
        with _tolerating(operation, lenient):
            os.rename(self.directory / operation.path, target)
        below = operation.path + "/"
        for each in [each for each in self._unsynced if each == operation.path or each.startswith(below)]:
            self._unsynced.discard(each)
            self._unsynced.add(new + each[len(operation.path) :])
        self._unsynced.add(new)

    def _delete(self, operation: Operation) -> None:
        self._forget(operation.path)
        path = self.directory / operation.path
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _forget(self, path: str) -> None:
        """Close the files of this path, or below it."""
        below = path + "/"
        for each in [each for each in self._open if each == path or each.startswith(below)]:
            os.close(self._open.pop(each)[0])

    def close(self) -> None:
        for path in list(self._open):
            self._forget(path)

    # ---- the disk

    @property
    def changed(self) -> bool:
        """Whether something was written since the last `start_sync`."""
        return bool(self._unsynced)

    def start_sync(self) -> Unsynced:
        """Open what has changed since the last call, for `sync`. Raises OSError.

        Files are opened here, since the next operation may rename them.
        """
        taken, self._unsynced = self._unsynced, set()
        try:
            return open_to_sync(self.directory, taken)
        except OSError:
            self._unsynced |= taken
            raise

    # ---- catching up

    def put_aside(self, path: str) -> None:
        """Move a file that the primary does not have, or has otherwise. Raises OSError."""
        self._forget(path)
        target = self._diverged / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.rename(self.directory / path, target)

    def cut_aside(self, path: str, size: int) -> None:
        """Move what a file has behind its first `size` bytes, and cut it off. Raises OSError."""
        self._forget(path)
        target = self._diverged / f"{path}@{size}"
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.directory / path, "r+b", buffering=0) as file:
            file.seek(size)
            with open(target, "wb") as aside:
                shutil.copyfileobj(file, aside, 1 << 20)
                aside.flush()
                os.fsync(aside.fileno())
            os.ftruncate(file.fileno(), size)
        self._unsynced.add(path)

    def put_unknown_aside(self, known: dict[str, int]) -> int:
        """For a thread. Returns how many files were moved. Raises OSError."""
        unknown = [path for path in list_files(self.directory) if path not in known]
        for path in unknown:
            self.put_aside(path)
        # A topic is a folder: one without files would come back as an empty topic.
        for top in ("topics", "staged"):
            for folder, _, _ in os.walk(self.directory / top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return len(unknown)

    def take_anew(self, path: str) -> None:
        """Put a file that was fetched as a whole in the place of one that is not trusted. Raises OSError."""
        self._forget(path)
        os.replace(self.directory / (path + ANEW), self.directory / path)
        self._unsynced.discard(path + ANEW)
        self._unsynced.add(path)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Add a piece of a file that is being copied. For a thread. Raises OSError."""
        self._unsynced.add(path)
        fd = self._create(path)
        try:
            os.ftruncate(fd, offset)
            done = 0
            while done < len(data):  # a disk that is almost full takes less than it is given
                done += os.pwrite(fd, memoryview(data)[done:], offset + done)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _tolerating(operation: Operation, lenient: bool) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if not lenient:
            raise CopyDiffers(f"{operation.path} is not there") from None


def open_to_sync(directory: Path, paths: Iterable[str]) -> Unsynced:
    """Open these files and the folders that they are in; those that are gone are left out. Raises OSError."""
    paths = frozenset(paths)
    if len(paths) > MOST_TO_OPEN:
        return Unsynced(directory, paths, None)
    folders = {os.path.dirname(path) for path in paths}
    found: list[int] = []
    try:
        for path in [*paths, *(folders | {os.path.dirname(each) for each in folders})]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append(os.open(directory / path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        for fd in found:
            os.close(fd)
        raise
    return Unsynced(directory, paths, found)


def sync(unsynced: Unsynced) -> None:
    """Bring files and folders to the disk, and close them. For a thread. Raises FsyncFailed.

    Raises OSError, too, where very many files are opened here.
    """
    if unsynced.descriptors is None:
        _sync_many(unsynced)
        return
    failure = None
    for fd in unsynced.descriptors:
        try:
            os.fsync(fd)
        except OSError as error:
            failure = error
        finally:
            os.close(fd)
    if failure is not None:
        raise FsyncFailed(failure, unsynced.paths)


def _sync_many(unsynced: Unsynced) -> None:
    # `sync` also stores the files that are renamed before they are opened here. It tells of no failure.
    os.sync()
    paths = list(unsynced.paths)
    for at in range(0, len(paths), SYNCED_AT_ONCE):
        try:
            sync(open_to_sync(unsynced.directory, paths[at : at + SYNCED_AT_ONCE]))
        except FsyncFailed as error:
            raise FsyncFailed(error, unsynced.paths) from None


def sync_everything(directory: Path) -> None:
    """Bring all files of a data directory to the disk. For a thread. Raises FsyncFailed and OSError.

    `sync` alone tells of no failure.
    """
    os.sync()
    paths = list(list_files(directory))
    for at in range(0, len(paths), SYNCED_AT_ONCE):
        sync(open_to_sync(directory, paths[at : at + SYNCED_AT_ONCE]))


def rewrite(directory: Path, paths: Iterable[str]) -> None:
    """Store files anew with what they read now, since their fsync failed. For a thread. Raises OSError."""
    below = tuple(path + "/" for path in paths)
    whole = set(paths)
    for path in list_files(directory):
        if path in whole or path.startswith(below):
            target = directory / path
            temporary = target.with_name(target.name + ".tmp")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(target, "rb") as old, os.fdopen(fd, "wb") as new:
                shutil.copyfileobj(old, new, 1 << 20)
                new.flush()
                os.fsync(new.fileno())
            os.replace(temporary, target)
            sync_path(target.parent)


def write_state(directory: Path, state: str, node: str, term: int, boot: str) -> None:
    """Note that the directory is a copy, and whether it may take the primary's place. Raises OSError.

    `boot` is that of the kernel since which every byte of it was compared or copied; empty without one.
    """
    text = json.dumps({"state": state, "node": node, "term": term, "boot": boot, "version": 1})
    replace_file(directory / STATE, text.encode(), directory / (STATE + ".tmp"), 0o600)
