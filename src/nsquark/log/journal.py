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
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from nsquark import kernel

from .journal_copy import SUFFIX, JournalCopy
from .ranges import Ranges
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
        self._numbers: dict[int, tuple[str, ChannelState]] = {}

    def apply(self, records: memoryview) -> None:
        """Replay a block. Records of a channel that does not exist are passed over."""
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
            else:
                return  # from a later version: what follows cannot be read


class Journal(kernel.Records):
    """The journal of one topic, or (without a directory) one that writes nothing.

    Records gather until `flush` writes them as one block; `dirty` says that there are some.
    """

    def __init__(self, directory: Path | None) -> None:
        super().__init__()
        self.directory = directory
        self.state = JournalState()
        self.damaged = False  # there were files, and none of them could be read
        self._snapshot_size = 0
        self._torn = False
        self._generation = 0
        self._stale: list[Path] = []
        self._copy: JournalCopy | None = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            self._read(directory)

    def _read(self, directory: Path) -> None:
        generations = sorted(
            int(path.name[len(PREFIX) :])
            for path in directory.glob(PREFIX + "*")
            if path.name[len(PREFIX) :].isdigit()
        )
        # The newest file whose snapshot is whole says everything; if it is torn, the one before does.
        for generation in reversed(generations):
            state = JournalState()
            if self._replay(self._path(generation).read_bytes(), state):
                self.state = state
                break
        else:
            self.damaged = bool(generations)
        self._generation = generations[-1] if generations else 0
        self._stale = [self._path(generation) for generation in generations]
        self._stale += directory.glob(PREFIX + "*" + SUFFIX)  # a crash came while they were written

    def _path(self, generation: int) -> Path:
        assert self.directory is not None
        return self.directory / f"{PREFIX}{generation:06d}"

    @staticmethod
    def _replay(data: bytes, state: JournalState) -> bool:
        """Apply every whole block; False when not even the first is."""
        view = memoryview(data)
        at = 0
        while len(data) - at >= BLOCK.size:
            magic, crc, length = BLOCK.unpack_from(data, at)
            end = at + BLOCK.size + length
            if magic != MAGIC or end > len(data) or kernel.crc32c(data, at + 8, end) != crc:
                break
            state.apply(view[at + BLOCK.size : end])
            at = end
        return at > 0

    # ---- records

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

    # ---- the file

    def undo(self) -> None:
        self._torn = True
        os.ftruncate(self.fd, self.size)

    @property
    def overgrown(self) -> bool:
        """Whether a new snapshot would make the journal much smaller, or mend one that missed something."""
        return self._torn or self.size > max(COMPACT_FROM, COMPACT_GROWTH * self._snapshot_size)

    def begin(self) -> None:
        """Drop the records gathered: what comes next, up to `rewrite`, is a snapshot of everything."""
        self.drop()

    def rewrite(self) -> tuple[int, list[Path]]:
        """Begin a new file with the snapshot gathered since `begin`.

        Returns a descriptor to fsync and close, and the files to delete after that, both in a thread: until
        then the old file stands behind the new one.
        """
        block = self.block()
        if self.directory is None:
            return -1, []
        self.give_up_copy()
        self._torn = True  # until it is written: what `begin` has dropped is nowhere else
        path = self._path(self._generation + 1)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, block)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        if self.fd >= 0:
            os.close(self.fd)
        self._generation += 1
        self.fd = fd
        self._torn = False
        self.size = self._snapshot_size = len(block)
        stale, self._stale = self._stale, [path]
        return os.dup(fd), stale

    # ---- the next file, in pieces

    @property
    def next_file(self) -> JournalCopy | None:
        """What is to follow the present file, if it is being written."""
        return self._copy

    def begin_copy(self) -> JournalCopy:
        """Begin the next file; what is flushed from here on goes to both. Raises OSError."""
        self._generation += 1
        self._copy = copy = JournalCopy(self._path(self._generation))
        self.copy = copy.write
        return copy

    def switch(self) -> list[Path]:
        """Go on with the next file, which is complete; returns the files to delete."""
        copy, self._copy, self.copy = self._copy, None, None
        assert copy is not None
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.size, self._snapshot_size = copy.fd, copy.size, copy.snapshot_size
        self.unsynced = True
        self._torn = False
        stale, self._stale = self._stale, [copy.path]
        return stale

    def give_up_copy(self) -> None:
        """Stay with the present file."""
        copy, self._copy, self.copy = self._copy, None, None
        if copy is not None:
            copy.give_up()

    def start_sync(self) -> list[int]:
        """Descriptors to fsync and close, in a thread."""
        if self.fd < 0 or not self.unsynced:
            return []
        fds = [os.dup(self.fd)]
        if self._copy is not None:  # either may be the one that is read after a power cut
            fds.append(os.dup(self._copy.fd))
        self.unsynced = False
        return fds

    def close(self, sync: bool = True) -> None:
        self.give_up_copy()
        if self.fd >= 0:
            if sync:
                os.fsync(self.fd)
            os.close(self.fd)
            self.fd = -1


def _write_all(fd: int, data: bytes) -> None:
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])
