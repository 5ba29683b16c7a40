"""What a topic's channels have done with its log: finished, requeued, deferred.

One journal a topic, beside its segments: a file of blocks, each written with one write and guarded by a CRC
(`records`). The records of a turn of the event loop make one block. A file begins with a snapshot of
everything, so a later file replaces all before it. When a file has grown to many times its snapshot, the
journal begins the next one (`copy`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from nsquark import changes
from nsquark.durable import write_all

from ..damage import Damage, Record, keep, records, tidy
from ..written_files import WRITTEN_FILES, close_synced
from .copy import SUFFIX, JournalCopy
from .inspection import PREFIX, InspectedJournal, file_name, inspect_journal
from .records import JournalRecords
from .state import JournalState

COMPACT_FROM = 1 << 20
COMPACT_GROWTH = 8
MOST_KEPT = 16 << 10  # bytes of an earlier process's file that is used on: its snapshot is written at once


class Journal(JournalRecords):
    """The journal of one topic, or (without a directory) one that writes nothing."""

    def __init__(
        self, directory: Path | None, inspected: InspectedJournal | None = None, term: int = 0
    ) -> None:
        """Read what is in the directory. Damaged bytes are kept aside before anything is written.

        Raises OSError and UnknownVersion.
        """
        super().__init__(gathers=directory is not None)
        self.directory = directory
        self._term = term  # in the names of the files that are begun
        self.state = JournalState()
        self.damaged = False  # there were files, and none of them could be read
        self.generation = 0  # of the file that is written
        self._told: tuple[int, Path] | None = None  # its path, and its generation
        self._newest = 0  # the newest generation that was begun
        self.records: list[Record] = []  # of damage, those that no operator has acknowledged
        self.found: list[Record] = []  # of those, the ones that were found just now
        self.torn: list[tuple[Path, int]] = []  # files whose end was not a whole block, and its bytes
        self._snapshot_size = 0
        self._unsound = False  # an fsync of the file has failed: it must be written again, see `syncing`
        self._stale: list[Path] = []
        self._worthless: list[Path] = []  # never synced, and not the newest
        self._copy: JournalCopy | None = None
        # The file of an earlier process says everything, and this process has not begun one yet.
        self.from_before = False
        self._usable = False  # there is such a file, it is small, and it has no damage
        if directory is not None:
            self._take_up(directory, inspect_journal(directory) if inspected is None else inspected)

    def _take_up(self, directory: Path, found: InspectedJournal) -> None:
        names = found.names
        if not names:  # else the directory is there
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        tidy(directory, names)
        self.records = [
            each
            for each in records(directory, names)
            if each.file.startswith(PREFIX) and each.damage.first is None and not each.acknowledged
        ]
        for file in found.files:
            damages = file.damages
            if not file.whole and (damages or not found.readable):
                # Without its snapshot nothing in it can be used, and no other file says what it said.
                damages = [Damage(0, os.stat(file.path).st_size)]
            elif file.torn:
                self.torn.append((file.path, file.torn))
            for damage in damages:
                self._put_aside(file.path, damage)
        self.state = found.state
        self.damaged = not found.readable
        self.generation = self._newest = found.generations[-1] if found.generations else 0
        self._stale = list(found.paths)
        unfinished = (name for name in names if name.startswith(PREFIX) and name.endswith(SUFFIX))
        self._stale += [directory / name for name in unfinished]  # a crash has left them
        self._usable = (
            self._stale == [self.path]
            and found.files[0].size <= MOST_KEPT
            and not self.torn
            and not any(file.damages for file in found.files)
            and found.state.epoch is not None
        )

    def says_everything(self, end: int, channels: Sequence[str]) -> bool:
        """Whether the file of an earlier process can be used on: nothing that is known is missing in it.

        The log ends at `end`, and the topic has these channels. Records of positions behind the end would
        belong to other messages soon.
        """
        known = self.state
        return self._usable and set(channels) == set(known.channels) and known.end <= end

    def use_on(self) -> None:
        """Begin no file until there is something to write."""
        self.from_before = self.incomplete = True

    def _put_aside(self, path: Path, damage: Damage) -> None:
        record, new = keep(path, damage)
        if not record.acknowledged and record.path not in [each.path for each in self.records]:
            self.records.append(record)
        if new:
            self.found.append(record)

    @property
    def path(self) -> Path:
        """The file that is being written."""
        return self._path(self.generation)

    def _path(self, generation: int) -> Path:
        assert self.directory is not None
        return self.directory / file_name(generation, self._term)

    def told_path(self) -> Path | None:
        if self._told is None or self._told[0] != self.generation:
            if self.directory is None:
                return None
            self._told = self.generation, self.path
        return self._told[1]

    # ---- the file

    @property
    def complete(self) -> bool:
        """Whether the file says everything that was flushed."""
        return not self.incomplete

    @property
    def sound(self) -> bool:
        """Whether the file is complete, and an fsync of it can be believed."""
        return not self.incomplete and not self._unsound

    @property
    def overgrown(self) -> bool:
        """Whether a new snapshot would make the journal much smaller, or replace one that is not sound."""
        if self.from_before:
            return False
        return not self.sound or self.size > max(COMPACT_FROM, COMPACT_GROWTH * self._snapshot_size)

    def begin(self) -> None:
        """Drop the records gathered. The caller adds a snapshot of everything next, and calls `rewrite`."""
        if self.directory is not None:
            begun = self.fd >= 0 or self.resting
            self.incomplete = self.incomplete or self.dirty or not begun  # until the snapshot is written
            self.from_before = self._usable = False
        self.drop()

    def rewrite(self) -> tuple[int, list[Path]]:
        """Begin a new file with the snapshot gathered since `begin`.

        Returns a descriptor and the files it replaces. The caller gives them to `replace_journal`, in a
        thread: the old files stay until the new one is on the disk. Raises OSError, and the journal goes on
        with the old file.
        """
        block = self.block()
        if self.directory is None:
            return -1, []
        self.give_up_copy()
        self._newest += 1
        path = self._path(self._newest)
        WRITTEN_FILES.make_room()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, block)
            to_sync = os.dup(fd)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        changes.tell_created(path)
        changes.tell_appended(path, 0, block)
        if self.fd >= 0:
            os.close(self.fd)
        self.generation = self._newest
        self._use(fd)
        self.incomplete = self._unsound = self.unsynced = False
        self.size = self._snapshot_size = len(block)
        self._stale = [each for each in self._stale if each not in self._worthless]
        for each in self._worthless:  # or a disk that takes files and does not sync them would fill up
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)
                changes.tell_deleted(each)
        self._worthless = []
        stale, self._stale = self._stale, [path]
        return to_sync, stale

    def not_replaced(self, generation: int, stale: Sequence[Path]) -> None:
        """Note that the file of this generation could not be synced: those before it are still needed."""
        self._stale = [*stale, *self._stale]
        self._worthless.append(self._path(generation))
        self.not_synced(generation)

    def not_synced(self, generation: int) -> None:
        """Note that an fsync has failed, of this generation or of an earlier one.

        A file that has been replaced since does not matter any more.
        """
        if generation >= self.generation:
            self._unsound = True
        if self._copy is not None and generation >= self._copy.generation:
            self.give_up_copy()  # another fsync of it may succeed, but would prove nothing

    # ---- the next file, in pieces

    @property
    def next_file(self) -> JournalCopy | None:
        """The file that is to follow the present one, if it is being written."""
        return self._copy

    def begin_copy(self) -> JournalCopy:
        """Begin the next file. From here on `flush` writes to both files. Raises OSError."""
        self._newest += 1
        self._copy = copy = JournalCopy(self._path(self._newest), self._newest)
        self.copy = copy.write
        return copy

    def switch(self) -> list[Path]:
        """Go on with the next file, which is complete; returns the files to delete."""
        copy, self._copy, self.copy = self._copy, None, None
        assert copy is not None
        if self.fd >= 0:
            os.close(self.fd)
        self.size, self._snapshot_size = copy.size, copy.snapshot_size
        self.generation = copy.generation
        self._use(copy.fd)
        self.unsynced = True  # records may have come after its fsync
        self.incomplete = self._unsound = False
        stale, self._stale = self._stale, [copy.path]
        return stale

    def give_up_copy(self) -> None:
        """Stay with the present file."""
        copy, self._copy, self.copy = self._copy, None, None
        if copy is not None:
            copy.give_up()

    def start_sync(self) -> tuple[list[int], int]:
        """Descriptors to fsync and close, in a thread, and their generation.

        If the fsync fails, the caller calls `not_synced`. Raises OSError, and nothing has changed, when there
        are no more descriptors.
        """
        if self.fd < 0 or not self.unsynced:
            return [], self.generation
        fds = [os.dup(self.fd)]
        generation = self.generation
        if self._copy is not None:  # after a power cut, either may be the one that is read
            try:
                fds.append(os.dup(self._copy.fd))
            except OSError:
                os.close(fds[0])
                raise
            generation = self._copy.generation
        self.unsynced = False
        return fds, generation

    # ---- the descriptor

    def _use(self, fd: int) -> None:
        self.fd = fd
        self.resting = False
        WRITTEN_FILES.add(self)

    @property
    def written(self) -> int:
        return self.size

    def rest(self, wait: bool) -> bool:
        """Close the file until the next write, if an fsync has it or has had it: see `WrittenFile`.

        While the fsync is under way, it has a descriptor of its own, and the caller of `start_sync` or
        `rewrite` tells what came of it. A file that is not sound needs no fsync: another one will replace it.
        """
        if self._copy is not None:
            return False
        if self.unsynced and self.sound:
            if not wait:
                return False
            self.unsynced = False
            try:
                os.fdatasync(self.fd)
            except OSError:
                self.not_synced(self.generation)
        fd, self.fd = self.fd, -1
        self.resting = True
        close_synced(fd)
        return True

    def open_again(self) -> None:
        self._use(WRITTEN_FILES.open_again(self.path, self.size))

    def close(self, sync: bool = True) -> None:
        """Close the file. Raises OSError when the disk does not hold everything; it is closed in any case."""
        self.give_up_copy()
        self.resting = False
        WRITTEN_FILES.remove(self)
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)


def replace_journal(fd: int, path: Path, stale: Sequence[Path]) -> None:
    """Sync and close a new file of a journal, which lies at `path`. Only then delete those it replaces.

    May run in any thread. Raises OSError.
    """
    try:
        os.fsync(fd)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The topic may have been deleted meanwhile, and another topic may have its name: then these are
            # the files of that other topic, and stay.
            if os.stat(path.name, dir_fd=folder).st_ino == os.fstat(fd).st_ino:
                os.fsync(folder)  # or a power cut could take the new file after the old ones were deleted
                for each in stale:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each.name, dir_fd=folder)
                        if not each.exists():  # else it is the file of a topic that has this name now
                            changes.tell_deleted(each)
        finally:
            os.close(folder)
    finally:
        os.close(fd)
