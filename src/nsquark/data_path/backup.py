"""`nsquark backup`: a consistent copy of a data directory, also while nsqd writes to it.

Nothing asks nsqd: the order of the steps makes the copy one that a start could have found.

1. The segments that are there get a second name in the copy (a hard link, or a copy on another file system).
   From here on nsqd may delete them: the copy still has them. Only the newest is still written to.
2. The journal is copied. It is younger than step 1, so every message that it calls unfinished is in a segment
   of the copy.
3. The newest segment is copied, and all that were begun meanwhile. The log of the copy is now younger than
   its journal, as after a crash: what came behind the journal is delivered, and nothing is missing.
4. nsquark.dat comes last, so that its counters are ahead of all ids and positions in the copy. nsqd.dat comes
   first: channels that are created later are known to their journals.

What applications have staged is read before and after the logs. Where an application has published a batch
meanwhile, the logs are extended and the application is read again, until nothing has changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from nsquark.durable import sync_path
from nsquark.errors import NsquarkError
from nsquark.log.file_names import parse_stem
from nsquark.log.opening import WITH_THE_SEGMENTS
from nsquark.log.segment import SUFFIX
from nsquark.nsqd.storage import metadata, node
from nsquark.nsqd.storage.inspection import DELETED, STAGED

from .new_folder import new_folder

JOURNAL = "journal."
_TRIES = 100
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP}


class BackupFailed(NsquarkError):
    """There is no backup; what was begun of it is deleted."""


@dataclass(slots=True)
class Backup:
    """What a backup has copied."""

    target: Path
    topics: int = 0
    linked: int = 0  # files that share their blocks with the data directory
    copied: int = 0
    copied_bytes: int = 0
    skipped: list[str] = field(default_factory=list)  # topics that were deleted meanwhile


def back_up(data_path: Path, target: Path) -> Backup:
    """Copy `data_path` to `target`, which must not exist or be empty. It is on the disk when this returns.

    Raises BackupFailed, NotADataPath, DataRefused and OSError; `target` does not exist then.
    """
    with new_folder(data_path, target, "backup", BackupFailed) as folder:
        backup = _Copy(data_path, folder, Backup(target)).run()
        _sync_all(folder)
    return backup


class _Copy:
    def __init__(self, source: Path, target: Path, result: Backup) -> None:
        self._source = source
        self._target = target
        self._result = result

    def run(self) -> Backup:
        topics = self._source / node.TOPICS
        (self._target / node.TOPICS).mkdir()
        self._copy_if_there(metadata.FILE_NAME)
        staged = self._copy_staged()
        for directory in sorted(topics.iterdir()) if topics.is_dir() else ():
            if directory.is_dir() and not directory.name.startswith(DELETED):
                self._copy_topic(directory)
        self._settle_staged(staged)
        self._copy_if_there(node.FILE_NAME)
        for record in sorted(self._source.glob("*.bad")) + sorted(self._source.glob("*.acknowledged")):
            self._link(record, self._target / record.name)
        return self._result

    # ---- a topic

    def _copy_topic(self, directory: Path) -> None:
        """Copy a topic. One that is deleted meanwhile is left out, one that takes its place is copied."""
        target = self._target / node.TOPICS / directory.name
        for _ in range(_TRIES):
            try:
                inode = directory.stat().st_ino
                target.mkdir(mode=0o700)
                self._link_segments(directory, target)
                self._copy_journal(directory, target)
                self._extend_segments(directory, target)
                if directory.stat().st_ino == inode:
                    self._result.topics += 1
                    return
            except FileNotFoundError:
                if not directory.exists():
                    self._result.skipped.append(directory.name)
                    shutil.rmtree(target, ignore_errors=True)
                    return
            # A segment or a journal was deleted between two steps, or the whole topic: once more.
            shutil.rmtree(target, ignore_errors=True)
        raise BackupFailed(f"{directory} changes faster than it can be copied")

    def _link_segments(self, directory: Path, target: Path) -> None:
        """Step 1. Files beside the segments that tell of damage, doubt or the archive come along."""
        segments = _segments(directory)
        for name in segments[:-1]:
            self._link(directory / name, target / name)
        for entry in os.listdir(directory):
            if entry.endswith(WITH_THE_SEGMENTS):
                with contextlib.suppress(FileNotFoundError):
                    self._link(directory / entry, target / entry)
        if segments:
            self._copy_file(directory / segments[-1], target / segments[-1])

    def _copy_journal(self, directory: Path, target: Path) -> None:
        """Step 2. A new journal replaces the old one: where one is begun meanwhile, copy all again."""
        for _ in range(_TRIES):
            before = _journals(directory)
            try:
                for name in before:
                    self._copy_file(directory / name, target / name)
            except FileNotFoundError:
                pass
            else:
                if _journals(directory) == before:
                    return
            for name in _journals(target):
                (target / name).unlink()
        raise BackupFailed(f"the journal of {directory} changes faster than it can be copied")

    def _extend_segments(self, directory: Path, target: Path) -> None:
        """Step 3. Only the last segment of the copy may end early: all before it are complete."""
        here = _segments(target)
        names = [name for name in _segments(directory) if name >= min(here, default="")]
        if here and here[-1] not in names and names:
            # The newest of step 1 has been completed and deleted since, and the copy has only its beginning.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory / here[-1]))
        for name in names[:-1]:
            if not (target / name).exists() or not os.path.samefile(directory / name, target / name):
                (target / name).unlink(missing_ok=True)
                self._link(directory / name, target / name)
        if names:
            (target / names[-1]).unlink(missing_ok=True)
            self._copy_file(directory / names[-1], target / names[-1])

    # ---- what is staged

    def _copy_staged(self) -> dict[Path, bytes]:
        """Copy the stages and then the state of each application; returns the states by their paths."""
        folder = self._source / STAGED
        states: dict[Path, bytes] = {}
        shutil.rmtree(self._target / STAGED, ignore_errors=True)
        for app in sorted(folder.iterdir()) if folder.is_dir() else ():
            if app.name.startswith(DELETED) or not app.is_dir():
                continue
            # A stage that is published is deleted after the state says so. So the stages are copied first,
            # and a state that is read behind them needs none that is not here.
            for path in sorted(app.rglob("*")):
                if path.is_file() and path.parent != app:
                    with contextlib.suppress(FileNotFoundError):
                        self._copy_file(path, self._target / path.relative_to(self._source))
            for path in sorted(app.iterdir()):
                if path.is_file() and not path.name.endswith(".tmp"):
                    with contextlib.suppress(FileNotFoundError):
                        states[path] = path.read_bytes()
                        self._copy_file(path, self._target / path.relative_to(self._source))
        return states

    def _settle_staged(self, states: dict[Path, bytes]) -> None:
        """Copy again until no application has published anything between its state and the logs."""
        for _ in range(_TRIES):
            if self._staged_states() == states:
                return
            states = self._copy_staged()
            for target in sorted((self._target / node.TOPICS).iterdir()):
                directory = self._source / node.TOPICS / target.name
                if directory.is_dir():
                    with contextlib.suppress(FileNotFoundError):
                        self._extend_segments(directory, target)
            time.sleep(0.01)  # a publication under way takes a moment
        raise BackupFailed("applications publish staged batches faster than they can be copied")

    def _staged_states(self) -> dict[Path, bytes]:
        folder = self._source / STAGED
        states = {}
        for path in folder.glob("*/*") if folder.is_dir() else ():
            if path.is_file() and not path.name.endswith(".tmp") and not path.parent.name.startswith(DELETED):
                with contextlib.suppress(FileNotFoundError):
                    states[path] = path.read_bytes()
        return states

    # ---- files

    def _copy_if_there(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._copy_file(self._source / name, self._target / name)

    def _link(self, source: Path, target: Path) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            self._copy_file(source, target)
        else:
            self._result.linked += 1

    def _copy_file(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)
        self._result.copied += 1
        self._result.copied_bytes += target.stat().st_size


def _segments(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))


def _journals(directory: Path) -> list[str]:
    names = os.listdir(directory)
    return sorted(name for name in names if name.startswith(JOURNAL) and parse_stem(name[len(JOURNAL) :]))


def _sync_all(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            sync_path(Path(parent) / name)
        sync_path(Path(parent))
