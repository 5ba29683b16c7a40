"""What a topic's channels have done with its log: finished, requeued, deferred.

One journal a topic, beside its segments: a file of blocks, each written with one write and guarded by a CRC.
The records of a turn of the event loop make one block. A file begins with a snapshot of everything, so a
later one replaces all before it; when a file has grown to many times its snapshot, the next is begun
(`journal_copy.py`).

    0       4       8        12
    | NQJ1  | u32   | u32    | ...
    | magic | crc   | length | records        crc of everything behind it, length of the records

A record is a letter and fixed fields, big-endian; positions are u64, due times i64 ns since the epoch:

    C number u32, position, name u8 + bytes     channel `number` exists and has finished all before `position`
    D number                                    that channel is gone
    F number, position, count u32               finished
    R number, position, count, attempts u16, due    unfinished, delivered `attempts` times, waits until `due`
    M number, position                          everything before `position` is finished, nothing else is
    Q position, count, due                      published with a due time, for every channel
    P position                                  what lies before has left the topic's queue for its channels
    E epoch u64                                 which log this is: another one when a topic is created again
    S u8                                        1: a snapshot in many blocks begins, 0: it is complete
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsquark import kernel
from nsquark.errors import UnknownVersion

from .damage import Damage, Record, keep, records, tidy
from .journal_copy import SUFFIX, JournalCopy
from .ranges import Ranges
from .syncing import write_all
from .topic_log import Deferred

PREFIX = "journal."
BLOCK = struct.Struct(">4sII")
MAGIC = b"NQJ1"
COMPACT_FROM = 1 << 20
COMPACT_GROWTH = 8

_CREATE = struct.Struct(">cIQB")
_DELETE = struct.Struct(">cI")
_FINISH = struct.Struct(">cIQI")  # written by the kernel
_REQUEUE = struct.Struct(">cIQIHq")
_MOVE = struct.Struct(">cIQ")
_DEFER = struct.Struct(">cQIq")
_PUMP = struct.Struct(">cQ")
_EPOCH = struct.Struct(">cQ")
_SNAPSHOT = struct.Struct(">cB")


class ChannelState:
    """A channel as the journal knows it.

    To be delivered: what is in `waiting`, and everything from `position` on that is not in `passed`.
    """

    __slots__ = ("number", "passed", "position", "waiting")

    def __init__(self, number: int, position: int) -> None:
        self.number = number
        self.position = position
        self.passed = Ranges()
        self.waiting: dict[int, tuple[int, int]] = {}  # position: (attempts so far, due)

    def finish(self, start: int, end: int) -> None:
        self._pass(start, end)
        self._forget(start, end)

    def requeue(self, start: int, end: int, attempts: int, due: int) -> None:
        self._pass(start, end)
        for position in range(start, end):
            self.waiting[position] = (attempts, due)

    def _pass(self, start: int, end: int) -> None:
        # What lies before `position` is passed anyway, and may be very many ranges in any order.
        self.passed.add(max(start, self.position), end)

    def move(self, position: int) -> None:
        self.position = position
        self.passed = Ranges()
        self.waiting.clear()

    def settle(self, end: int) -> None:
        """Cut off what lies behind the end of the log, and go forward over what is passed already."""
        self.passed.drop_from(end)
        self._forget(end, 1 << 64)
        self.position = min(self.passed.next_gap(self.position), end)
        self.passed.drop_below(self.position)

    def _forget(self, start: int, end: int) -> None:
        waiting = self.waiting
        if not waiting:
            return
        if end - start < len(waiting):
            for position in range(start, end):
                waiting.pop(position, None)
        else:
            for position in [each for each in waiting if start <= each < end]:
                del waiting[position]


class JournalState:
    """Everything a journal says, as it is replayed record by record."""

    def __init__(self) -> None:
        self.channels: dict[str, ChannelState] = {}
        self.deferred: list[Deferred] = []
        self.pumped: int | None = None
        self.epoch: int | None = None
        self.in_snapshot = False  # there is more of it to come
        self._numbers: dict[int, tuple[str, ChannelState]] = {}

    def apply(self, records: memoryview) -> bytes:
        """Replay a block; returns the letter of a record that is not known, if it ends at one.

        Records of a channel that does not exist are passed over.
        """
        at = 0
        while at < len(records):
            kind = records[at : at + 1].tobytes()
            if kind == b"F":
                _, number, start, count = _FINISH.unpack_from(records, at)
                at += _FINISH.size
                if number in self._numbers:
                    self._numbers[number][1].finish(start, start + count)
            elif kind == b"R":
                _, number, start, count, attempts, due = _REQUEUE.unpack_from(records, at)
                at += _REQUEUE.size
                if number in self._numbers:
                    self._numbers[number][1].requeue(start, start + count, attempts, due)
            elif kind == b"M":
                _, number, position = _MOVE.unpack_from(records, at)
                at += _MOVE.size
                if number in self._numbers:
                    self._numbers[number][1].move(position)
            elif kind == b"C":
                _, number, position, length = _CREATE.unpack_from(records, at)
                at += _CREATE.size
                name = records[at : at + length].tobytes().decode("ascii")
                at += length
                self.channels[name] = ChannelState(number, position)
                self._numbers[number] = (name, self.channels[name])
            elif kind == b"D":
                _, number = _DELETE.unpack_from(records, at)
                at += _DELETE.size
                if number in self._numbers:
                    name, _ = self._numbers.pop(number)
                    self.channels.pop(name, None)
            elif kind == b"Q":
                _, position, count, due = _DEFER.unpack_from(records, at)
                at += _DEFER.size
                self.deferred.append(Deferred(position, count, due))
            elif kind == b"P":
                _, self.pumped = _PUMP.unpack_from(records, at)
                at += _PUMP.size
            elif kind == b"E":
                _, self.epoch = _EPOCH.unpack_from(records, at)
                at += _EPOCH.size
            elif kind == b"S":
                self.in_snapshot = bool(_SNAPSHOT.unpack_from(records, at)[1])
                at += _SNAPSHOT.size
            else:
                return kind  # from a later version: what follows cannot be read
        return b""


@dataclass(slots=True)
class _File:
    """A journal's file, as it reads."""

    path: Path
    state: JournalState
    whole: bool  # its snapshot is: the first block, or all of them up to where it is complete
    damages: list[Damage] = field(default_factory=list)
    torn: int = 0  # bytes at its end that are no whole block


@dataclass(slots=True)
class InspectedJournal:
    """What is in a topic's directory of journals: the newest file that can be used, and what is wrong."""

    state: JournalState
    generations: list[int]
    readable: bool  # there is a file that can be used, or none at all
    files: list[_File]  # the one that is used, and those before it in vain


def inspect_journal(directory: Path) -> InspectedJournal:
    """Read the journal without changing anything. Raises UnknownVersion and OSError."""
    paths = directory.glob(PREFIX + "*") if directory.is_dir() else ()
    names = [path.name[len(PREFIX) :] for path in paths]
    generations = sorted(int(name) for name in names if name.isdigit())
    files: list[_File] = []
    # The newest file whose snapshot is whole says everything; if it is not, the one before does.
    for generation in reversed(generations):
        files.append(_read_file(directory / _file_name(generation)))
        if files[-1].whole:
            return InspectedJournal(files[-1].state, generations, True, files)
    return InspectedJournal(JournalState(), generations, not generations, files)


def _file_name(generation: int) -> str:
    return f"{PREFIX}{generation:06d}"


def _read_file(path: Path) -> _File:
    """Apply every whole block, also behind a damaged one: docs/log-format.md says why that is safe."""
    data = path.read_bytes()
    file = _File(path, JournalState(), False)
    view = memoryview(data)
    at, incomplete = 0, False
    while at < len(data):
        end = _block_end(data, at)
        if end > at:
            unknown = file.state.apply(view[at + BLOCK.size : end])
            if unknown:
                raise UnknownVersion(str(path), f"has a record {unknown!r} in its block at offset {at}")
            file.whole = file.whole or at == 0
            at = end
            continue
        magic = data[at : at + len(MAGIC)]
        if magic[:3] == MAGIC[:3] and magic[3:].isdigit() and magic != MAGIC:
            raise UnknownVersion(str(path), f"has a block of format {magic.decode('ascii')} at offset {at}")
        following = _next_block(data, at)
        if following < 0:
            file.torn = len(data) - at
            break
        file.damages.append(Damage(at, following - at))
        incomplete = incomplete or file.state.in_snapshot
        at = following
    # Of what it says the channel has passed, a snapshot tells only later what is not finished.
    file.whole = file.whole and not incomplete and not file.state.in_snapshot
    return file


def _block_end(data: bytes, at: int) -> int:
    """Where the whole block ends that begins there; -1 if there is none."""
    if len(data) - at < BLOCK.size:
        return -1
    magic, crc, length = BLOCK.unpack_from(data, at)
    end: int = at + BLOCK.size + length
    if magic != MAGIC or end > len(data) or kernel.crc32c(data, at + 8, end) != crc:
        return -1
    return end


def _next_block(data: bytes, at: int) -> int:
    """Where the next whole block begins behind one that is not; -1 if there is none.

    Nothing in a journal can pass for a block: of what clients choose, it has only the names of channels.
    """
    while (at := data.find(MAGIC, at + 1)) >= 0:
        if _block_end(data, at) > at:
            return at
    return -1


class Journal(kernel.Records):
    """The journal of one topic, or (without a directory) one that writes nothing.

    Records gather until `flush` writes them as one block; `dirty` says that there are some.
    """

    def __init__(self, directory: Path | None, inspected: InspectedJournal | None = None) -> None:
        """Raises OSError and UnknownVersion; what is damaged is kept aside before anything is written."""
        super().__init__()
        self.directory = directory
        self.state = JournalState()
        self.damaged = False  # there were files, and none of them could be read
        self.generation = 0  # of the file that is written
        self._newest = 0  # of those that were begun
        self.records: list[Record] = []  # of damage, those that nobody has acknowledged
        self.found: list[Record] = []  # of those, what was found just now
        self.torn: list[tuple[Path, int]] = []  # files whose end was no whole block, and its bytes
        self._snapshot_size = 0
        self._torn = False  # records are missing in the file
        self._unsound = False  # an fsync of the file has failed: it must be written again, see `syncing`
        self._stale: list[Path] = []
        self._worthless: list[Path] = []  # never synced, and not the newest
        self._copy: JournalCopy | None = None
        if directory is not None:
            self._take_up(directory, inspect_journal(directory) if inspected is None else inspected)

    def _take_up(self, directory: Path, found: InspectedJournal) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        tidy(directory)
        self.records = [
            each
            for each in records(directory)
            if each.file.startswith(PREFIX) and each.damage.first is None and not each.acknowledged
        ]
        for file in found.files:
            damages = file.damages
            if not file.whole and (damages or not found.readable):
                # Without its snapshot nothing in it can be used, and nothing else says what it said.
                damages = [Damage(0, os.stat(file.path).st_size)]
            elif file.torn:
                self.torn.append((file.path, file.torn))
            for damage in damages:
                self._put_aside(file.path, damage)
        self.state = found.state
        self.damaged = not found.readable
        self.generation = self._newest = found.generations[-1] if found.generations else 0
        self._stale = [self._path(generation) for generation in found.generations]
        self._stale += directory.glob(PREFIX + "*" + SUFFIX)  # a crash came while they were written

    def _put_aside(self, path: Path, damage: Damage) -> None:
        record, new = keep(path, damage)
        if not record.acknowledged and record.path not in [each.path for each in self.records]:
            self.records.append(record)
        if new:
            self.found.append(record)

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self._path(self.generation)

    def _path(self, generation: int) -> Path:
        assert self.directory is not None
        return self.directory / _file_name(generation)

    # ---- records

    def add(self, record: bytes) -> None:
        if self.directory is not None:  # else nothing is ever written, and records would only gather
            super().add(record)

    def requeue(self, number: int, start: int, end: int, attempts: int, due: int) -> None:
        self.add(_REQUEUE.pack(b"R", number, start, end - start, min(attempts, 0xFFFF), due))

    def create(self, number: int, name: str, position: int) -> None:
        encoded = name.encode("ascii")
        self.add(_CREATE.pack(b"C", number, position, len(encoded)) + encoded)

    def delete(self, number: int) -> None:
        self.add(_DELETE.pack(b"D", number))

    def move(self, number: int, position: int) -> None:
        self.add(_MOVE.pack(b"M", number, position))

    def defer(self, deferred: Deferred) -> None:
        self.add(_DEFER.pack(b"Q", deferred.position, deferred.count, deferred.due))

    def pump(self, position: int) -> None:
        self.add(_PUMP.pack(b"P", position))

    def identify(self, epoch: int) -> None:
        self.add(_EPOCH.pack(b"E", epoch))

    def snapshot(self, goes_on: bool) -> None:
        """What follows is a snapshot in many blocks, or that is complete."""
        self.add(_SNAPSHOT.pack(b"S", goes_on))

    # ---- the file

    def undo(self) -> None:
        self._torn = True
        os.ftruncate(self.fd, self.size)

    @property
    def complete(self) -> bool:
        """Whether the file says everything that was flushed."""
        return not self._torn

    @property
    def sound(self) -> bool:
        """Whether the file is complete, and an fsync of it can be believed."""
        return not self._torn and not self._unsound

    @property
    def overgrown(self) -> bool:
        """Whether a new snapshot would make the journal much smaller, or mend one that is not sound."""
        return not self.sound or self.size > max(COMPACT_FROM, COMPACT_GROWTH * self._snapshot_size)

    def begin(self) -> None:
        """Drop the records gathered: what comes next, up to `rewrite`, is a snapshot of everything."""
        if self.directory is not None:
            self._torn = self._torn or self.dirty or self.fd < 0  # until the snapshot is written
        self.drop()

    def rewrite(self) -> tuple[int, list[Path]]:
        """Begin a new file with the snapshot gathered since `begin`.

        Returns a descriptor and the files it replaces for `replace_journal`, in a thread: until the new file
        is on the disk, the old one stands behind it. Raises OSError, and the old file is written on.
        """
        block = self.block()
        if self.directory is None:
            return -1, []
        self.give_up_copy()
        self._newest += 1
        path = self._path(self._newest)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, block)
            to_sync = os.dup(fd)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        if self.fd >= 0:
            os.close(self.fd)
        self.generation = self._newest
        self.fd = fd
        self._torn = self._unsound = self.unsynced = False
        self.size = self._snapshot_size = len(block)
        self._stale = [each for each in self._stale if each not in self._worthless]
        for each in self._worthless:  # else a disk that takes files and does not sync them would fill up
            with contextlib.suppress(OSError):
                each.unlink(missing_ok=True)
        self._worthless = []
        stale, self._stale = self._stale, [path]
        return to_sync, stale

    def not_replaced(self, generation: int, stale: Sequence[Path]) -> None:
        """The file of this generation could not be synced: those before it are still needed."""
        self._stale = [*stale, *self._stale]
        self._worthless.append(self._path(generation))
        self.not_synced(generation)

    def not_synced(self, generation: int) -> None:
        """An fsync of the files up to this generation has failed. Earlier files do not matter any more."""
        if generation >= self.generation:
            self._unsound = True
        if self._copy is not None and generation >= self._copy.generation:
            self.give_up_copy()  # its next fsync may work, and proves nothing

    # ---- the next file, in pieces

    @property
    def next_file(self) -> JournalCopy | None:
        """What is to follow the present file, if it is being written."""
        return self._copy

    def begin_copy(self) -> JournalCopy:
        """Begin the next file; what is flushed from here on goes to both. Raises OSError."""
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
        self.fd, self.size, self._snapshot_size = copy.fd, copy.size, copy.snapshot_size
        self.generation = copy.generation
        self.unsynced = True  # what came after its fsync
        self._torn = self._unsound = False
        stale, self._stale = self._stale, [copy.path]
        return stale

    def give_up_copy(self) -> None:
        """Stay with the present file."""
        copy, self._copy, self.copy = self._copy, None, None
        if copy is not None:
            copy.give_up()

    def start_sync(self) -> tuple[list[int], int]:
        """Descriptors to fsync and close, in a thread, and their generation: if that fails, `not_synced`.

        Raises OSError, and nothing has changed, when there are no more descriptors.
        """
        if self.fd < 0 or not self.unsynced:
            return [], self.generation
        fds = [os.dup(self.fd)]
        generation = self.generation
        if self._copy is not None:  # either may be the one that is read after a power cut
            try:
                fds.append(os.dup(self._copy.fd))
            except OSError:
                os.close(fds[0])
                raise
            generation = self._copy.generation
        self.unsynced = False
        return fds, generation

    def close(self, sync: bool = True) -> None:
        """Raises OSError when the disk does not hold everything; closed it is all the same."""
        self.give_up_copy()
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)


class GatheredRecords(Journal):
    """Records for a file of another's: they gather until `block` takes them."""

    def __init__(self) -> None:
        super().__init__(None)

    def add(self, record: bytes) -> None:
        kernel.Records.add(self, record)


def replace_journal(fd: int, path: Path, stale: Sequence[Path]) -> None:
    """Sync and close a new journal, which lies at `path`; only then delete those it replaces. Raises OSError.

    May run in any thread.
    """
    try:
        os.fsync(fd)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The topic may have been deleted meanwhile, and another one have its name: that one's files stay.
            if os.stat(path.name, dir_fd=folder).st_ino == os.fstat(fd).st_ino:
                os.fsync(folder)  # or a power cut takes the new name, and finds the old ones gone
                for each in stale:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each.name, dir_fd=folder)
        finally:
            os.close(folder)
    finally:
        os.close(fd)
