"""What a journal says: the state of a topic's channels, replayed record by record."""

from __future__ import annotations

import struct

from ..deferred import Deferred
from ..ranges import Ranges
from .records import (
    CREATE,
    DEFER,
    DELETE,
    EMPTIED,
    EPOCH,
    FINISH,
    MOVE,
    MOVES,
    PUMP,
    REQUEUE,
    SNAPSHOT,
)


class ChannelState:
    """A channel as the journal knows it.

    The channel has yet to deliver what is in `waiting`, and everything from `position` on that is not in
    `passed`.
    """

    __slots__ = ("emptied", "moves", "number", "passed", "position", "waiting")

    def __init__(self, number: int, position: int) -> None:
        self.number = number
        self.position = position
        self.passed = Ranges()
        self.waiting: dict[int, tuple[int, int]] = {}  # position: (attempts so far, due)
        self.moves = 0  # by seeking
        self.emptied = Ranges()  # by operators

    def finish(self, start: int, end: int) -> None:
        self._pass(start, end)
        self._forget(start, end)

    def requeue(self, start: int, end: int, attempts: int, due: int) -> None:
        self._pass(start, end)
        for position in range(start, end):
            self.waiting[position] = (attempts, due)

    def _pass(self, start: int, end: int) -> None:
        # Positions before `position` are passed anyway, and there may be very many ranges of them.
        self.passed.add(max(start, self.position), end)

    def move(self, position: int) -> None:
        self.position = position
        self.passed = Ranges()
        self.emptied = Ranges()
        self.waiting.clear()

    def settle(self, end: int) -> None:
        """Cut off what lies behind the end of the log, and go forward over what is passed already."""
        self.passed.drop_from(end)
        self.emptied.drop_from(end)
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
        self.in_snapshot = False  # the snapshot is not complete
        self._numbers: dict[int, tuple[str, ChannelState]] = {}

    @property
    def end(self) -> int:
        """The position behind the last one that any record is about."""
        found = max((each.position + each.count for each in self.deferred), default=self.pumped or 0)
        for each in self.channels.values():
            last = max(each.waiting, default=-1) + 1
            found = max(found, each.position, each.passed.end, each.emptied.end, last)
        return max(found, self.pumped or 0)

    def apply(self, records: memoryview) -> bytes:
        """Replay a block. Stops at a record whose letter is not known, and returns that letter.

        Records of a channel that does not exist are passed over. Raises ValueError for a record that is cut
        off, or has a name that is no name: the block was not written like this by any version.
        """
        try:
            return self._apply(records)
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"a record does not read: {error}") from None

    def _apply_deferred(self, records: memoryview, at: int) -> int:
        """Take a run of DEFER records, of which there may be a million; returns where it ends."""
        unpack, size, append, last = DEFER.unpack_from, DEFER.size, self.deferred.append, len(records)
        letter = records[at]
        while at < last and records[at] == letter:
            _, position, count, due = unpack(records, at)
            append(Deferred(position, count, due))
            at += size
        return at

    def _apply(self, records: memoryview) -> bytes:
        at = 0
        while at < len(records):
            kind = records[at : at + 1].tobytes()
            if kind == b"F":
                _, number, start, count = FINISH.unpack_from(records, at)
                at += FINISH.size
                if number in self._numbers:
                    self._numbers[number][1].finish(start, start + count)
            elif kind == b"R":
                _, number, start, count, attempts, due = REQUEUE.unpack_from(records, at)
                at += REQUEUE.size
                if number in self._numbers:
                    self._numbers[number][1].requeue(start, start + count, attempts, due)
            elif kind == b"M":
                _, number, position = MOVE.unpack_from(records, at)
                at += MOVE.size
                if number in self._numbers:
                    self._numbers[number][1].move(position)
            elif kind == b"N":
                _, number, moves = MOVES.unpack_from(records, at)
                at += MOVES.size
                if number in self._numbers:
                    self._numbers[number][1].moves = moves
            elif kind == b"X":
                _, number, start, count = EMPTIED.unpack_from(records, at)
                at += EMPTIED.size
                if number in self._numbers:
                    self._numbers[number][1].emptied.add(start, start + count)
            elif kind == b"C":
                _, number, position, length = CREATE.unpack_from(records, at)
                at += CREATE.size
                name = records[at : at + length].tobytes().decode("ascii")
                at += length
                if at > len(records):
                    raise struct.error(f"a name of {length} bytes is cut off")
                self.channels[name] = ChannelState(number, position)
                self._numbers[number] = (name, self.channels[name])
            elif kind == b"D":
                _, number = DELETE.unpack_from(records, at)
                at += DELETE.size
                if number in self._numbers:
                    name, _ = self._numbers.pop(number)
                    self.channels.pop(name, None)
            elif kind == b"Q":
                at = self._apply_deferred(records, at)
            elif kind == b"P":
                _, self.pumped = PUMP.unpack_from(records, at)
                at += PUMP.size
            elif kind == b"E":
                _, self.epoch = EPOCH.unpack_from(records, at)
                at += EPOCH.size
            elif kind == b"S":
                self.in_snapshot = bool(SNAPSHOT.unpack_from(records, at)[1])
                at += SNAPSHOT.size
            else:
                return kind  # from a later version: what follows it cannot be read
        return b""
