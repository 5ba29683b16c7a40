"""The records of a journal, and the blocks in which they are written.

    0       4       8        12
    | NQJ1  | u32   | u32    | ...
    | magic | crc   | length | records        crc of everything behind it, length of the records

A record is a letter and fixed fields, big-endian; positions are u64, due times i64 ns since the epoch:

    C number u32, position, name u8 + bytes     channel `number` exists and has finished all before `position`
    D number                                    that channel is gone
    F number, position, count u32               finished
    R number, position, count, attempts u16, due    unfinished, delivered `attempts` times, waits until `due`
    M number, position                          everything before `position` is finished, nothing else is
    N number, moves u32                         operators have moved the channel by seeking so many times
    X number, position, count                   an operator has emptied the channel there, or the topic for it
    Q position, count, due                      published with a due time, for every channel
    P position                                  what lies before has left the topic's queue for its channels
    E epoch u64                                 which log this is: another one when a topic is created again
    S u8                                        1: a snapshot in many blocks begins, 0: it is complete
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from nsquark import changes
from nsquark.kernel import BlockWriter
from nsquark.kernel.pure import RANGE

from ..deferred import Deferred

MAGIC = b"NQJ1"
CREATE = struct.Struct(">cIQB")
DELETE = struct.Struct(">cI")
FINISH = RANGE
REQUEUE = struct.Struct(">cIQIHq")
MOVE = struct.Struct(">cIQ")
MOVES = struct.Struct(">cII")
EMPTIED = RANGE
DEFER = struct.Struct(">cQIq")
PUMP = struct.Struct(">cQ")
EPOCH = struct.Struct(">cQ")
SNAPSHOT = struct.Struct(">cB")
_MAX_COUNT = 0xFFFFFFFF


class JournalRecords:
    """Gathers records until `flush` writes them to a file as one block, or `block` takes them.

    Finished ranges that follow each other become one record. `dirty` says that there are records.
    """

    def __init__(self, gathers: bool = True) -> None:
        """Without `gathers` the records are forgotten, as those of a topic that has no files."""
        self.dirty = False
        self.fd = -1
        self.resting = False  # the file is closed until the next write
        self.size = 0  # of the file
        self.incomplete = False  # records are missing in the file
        self.unsynced = False
        self.copy: Callable[[bytes], None] | None = None  # is given every block that is written, too
        self._gathers = gathers
        self._block = BlockWriter(MAGIC)
        # The last record, if it is a finished range: that can still grow.
        self._growing = False
        self._number = 0
        self._start = 0
        self._end = 0

    def finish(self, number: int, start: int, end: int) -> None:
        """Record that the channel has finished the positions [start, end)."""
        if self._growing:
            if self._number == number and self._end == start:
                self._end = end
                return
            self._add_range()
        self.dirty = True
        self._growing = True
        self._number = number
        self._start = start
        self._end = end

    def _add_range(self) -> None:
        """Lay out the range that was growing: from here on it does not grow."""
        self._growing = False
        while self._start < self._end:
            count = self._end - self._start
            if count > _MAX_COUNT:
                count = _MAX_COUNT
            self._block.add_range(b"F", self._number, self._start, count)
            self._start += count

    def add(self, record: bytes) -> None:
        if not self._gathers:
            return
        if self._growing:
            self._add_range()
        self._block.add(record)
        self.dirty = True

    def requeue(self, number: int, start: int, end: int, attempts: int, due: int) -> None:
        self.add(REQUEUE.pack(b"R", number, start, end - start, min(attempts, 0xFFFF), due))

    def create(self, number: int, name: str, position: int) -> None:
        encoded = name.encode("ascii")
        self.add(CREATE.pack(b"C", number, position, len(encoded)) + encoded)

    def delete(self, number: int) -> None:
        self.add(DELETE.pack(b"D", number))

    def move(self, number: int, position: int) -> None:
        self.add(MOVE.pack(b"M", number, position))

    def moves(self, number: int, moves: int) -> None:
        self.add(MOVES.pack(b"N", number, moves))

    def emptied(self, number: int, start: int, end: int) -> None:
        while start < end:
            count = min(end - start, _MAX_COUNT)
            self.add(EMPTIED.pack(b"X", number, start, count))
            start += count

    def defer(self, deferred: Deferred) -> None:
        self.add(DEFER.pack(b"Q", deferred.position, deferred.count, deferred.due))

    def pump(self, position: int) -> None:
        self.add(PUMP.pack(b"P", position))

    def identify(self, epoch: int) -> None:
        self.add(EPOCH.pack(b"E", epoch))

    def snapshot(self, goes_on: bool) -> None:
        """Record that a snapshot in many blocks begins here (`goes_on`), or that it is complete."""
        self.add(SNAPSHOT.pack(b"S", goes_on))

    def told_path(self) -> Path | None:
        """The file that `flush` writes to, for those that keep a copy of it."""
        return None

    def open_again(self) -> None:
        """Open the file that is `resting`. Raises OSError."""
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the records gathered."""
        self._block.drop()
        self._growing = False
        self.dirty = False

    def block(self) -> bytes:
        """Take the records gathered, as a block."""
        if self._growing:
            self._add_range()
        self.dirty = False
        return self._block.take()

    def flush(self) -> None:
        """Write the records gathered since the last call. Raises OSError when the disk refuses."""
        if not self.dirty:
            return
        block = self.block()
        if self.fd < 0 and not self.resting:
            return
        if self.copy is not None:
            self.copy(block)
        size = len(block)
        try:
            if self.fd < 0:
                self.open_again()
            done = os.write(self.fd, block)
            while done < size:
                done += os.write(self.fd, memoryview(block)[done:])
        except OSError:
            self.incomplete = True
            if self.fd >= 0:
                os.ftruncate(self.fd, self.size)
            raise
        if changes.listeners and (path := self.told_path()) is not None:
            changes.tell_appended(path, self.size, block)
        self.size += size
        self.unsynced = True
