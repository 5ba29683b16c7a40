"""What a channel owes besides the log in order: requeued messages and deferred messages.

Both queues hold ranges of positions with the attempts so far. Each queue keeps two orders: the order in
which its messages are delivered, and the order of their positions. The second order gives the lowest position
without a walk, and finds the ranges that overlap a given one. So the cost of a drop depends on what is
dropped, and not on what is kept.

The ranges of a queue do not overlap: a channel has every message in one place only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedKeyList, SortedList

MANY_DROPPED = 1000


class RequeuedRange:
    """Messages to be delivered again when the cursor has reached `mark`: that is their place in the queue."""

    __slots__ = ("attempts", "mark", "number", "position", "rest")

    def __init__(
        self, position: int, number: int, attempts: int, mark: int, rest: RequeuedRange | None = None
    ) -> None:
        self.position = position
        self.number = number  # 0 when all of them were dropped
        self.attempts = attempts
        self.mark = mark
        self.rest = rest  # what is left behind a dropped gap: it has the same place in the queue


class RequeuedQueue:
    """Requeued messages, first in, first out."""

    __slots__ = ("_by_position", "_dropped", "_entries", "count")

    def __init__(self) -> None:
        self._entries: deque[RequeuedRange] = deque()  # the first of them is not dropped
        self._by_position: Any = SortedKeyList(key=attrgetter("position"))
        self._dropped = 0  # entries that were dropped and are still in the queue
        self.count = 0  # messages

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[RequeuedRange]:
        for first in self._entries:
            entry: RequeuedRange | None = first
            while entry is not None:
                if entry.number:
                    yield entry
                entry = entry.rest

    @property
    def first(self) -> RequeuedRange:
        return self._entries[0]

    @property
    def low(self) -> int | None:
        """The lowest position in the queue."""
        return self._by_position[0].position if self._by_position else None

    def by_position(self) -> Iterator[RequeuedRange]:
        return iter(self._by_position)

    def from_position(self, position: int, most: int) -> list[RequeuedRange]:
        """At most `most` of the entries that begin with this position or a higher one, in that order."""
        return list(islice(self._by_position.irange_key(position), most))

    def push(self, position: int, number: int, attempts: int, mark: int) -> None:
        """Put these behind everything else.

        Messages that follow on the last entry, and are like it, become a part of it.
        """
        if self._entries:
            entry = self._entries[-1]
            if (
                entry.number
                and entry.position + entry.number == position
                and entry.attempts == attempts
                and entry.mark == mark
                and entry.rest is None
            ):
                entry.number += number
                self.count += number
                return
        entry = RequeuedRange(position, number, attempts, mark)
        self._entries.append(entry)
        self._by_position.add(entry)
        self.count += number

    def take(self, number: int) -> None:
        """Forget the first `number` messages of the first entry."""
        entry = self._entries[0]
        self.count -= number
        if number == entry.number:
            self._by_position.remove(entry)
            self._leave_first()
        else:
            self._shrink(entry, entry.position + number, entry.position + entry.number)

    def drop(self, start: int, end: int) -> None:
        """Forget the positions [start, end)."""
        for entry in _overlapping(self._by_position, start, end):
            pieces = _without(entry.position, entry.position + entry.number, start, end)
            self.count -= entry.number - sum(last - first for first, last in pieces)
            if len(pieces) == 2:
                first, last = pieces[1]
                entry.rest = RequeuedRange(first, last - first, entry.attempts, entry.mark, entry.rest)
                self._by_position.add(entry.rest)
            if pieces:
                first, last = pieces[0]
                self._shrink(entry, first, last)
            else:
                entry.number = 0
                self._by_position.remove(entry)
                self._dropped += 1
        if self._entries and not self._entries[0].number:
            self._dropped -= 1
            self._leave_first()
        if self._dropped > MANY_DROPPED and self._dropped > len(self._by_position):
            self._entries = deque(self)
            for entry in self._entries:
                entry.rest = None
            self._dropped = 0

    def _shrink(self, entry: RequeuedRange, first: int, last: int) -> None:
        # Its messages that were taken may be queued again meanwhile, with lower positions: sort it in anew.
        self._by_position.remove(entry)
        entry.position, entry.number = first, last - first
        self._by_position.add(entry)

    def _leave_first(self) -> None:
        entries = self._entries
        while True:
            first = entries[0]
            if first.rest is not None:
                entries[0] = first.rest
            else:
                entries.popleft()
            if not entries or entries[0].number:
                return
            self._dropped -= 1

    def clear(self) -> None:
        self._entries.clear()
        self._by_position.clear()
        self._dropped = self.count = 0


class DeferredRange(NamedTuple):
    """Messages that wait for their time, `due`."""

    due: int
    position: int
    number: int
    attempts: int


class DeferredQueue:
    """Deferred messages, by due time."""

    __slots__ = ("_by_due", "_by_position", "count")

    def __init__(self) -> None:
        self._by_due: Any = SortedList()
        self._by_position: Any = SortedKeyList(key=attrgetter("position"))
        self.count = 0  # messages

    def __bool__(self) -> bool:
        return bool(self._by_due)

    def __iter__(self) -> Iterator[DeferredRange]:
        return iter(self._by_due)

    @property
    def first(self) -> DeferredRange:
        entry: DeferredRange = self._by_due[0]
        return entry

    @property
    def low(self) -> int | None:
        """The lowest position in the queue."""
        return self._by_position[0].position if self._by_position else None

    def by_position(self) -> Iterator[DeferredRange]:
        return iter(self._by_position)

    def from_position(self, position: int, most: int) -> list[DeferredRange]:
        """At most `most` of the entries that begin with this position or a higher one, in that order."""
        return list(islice(self._by_position.irange_key(position), most))

    def push(self, due: int, position: int, number: int, attempts: int) -> None:
        entry = DeferredRange(due, position, number, attempts)
        self._by_due.add(entry)
        self._by_position.add(entry)
        self.count += number

    def fill(self, entries: Sequence[DeferredRange]) -> None:
        """Put all of these into an empty queue. Many at once cost far less than one by one."""
        self._by_due.update(entries)
        self._by_position.update(entries)
        self.count += sum(entry.number for entry in entries)

    def pop(self) -> DeferredRange:
        entry: DeferredRange = self._by_due.pop(0)
        self._by_position.remove(entry)
        self.count -= entry.number
        return entry

    def drop(self, start: int, end: int) -> None:
        """Forget the positions [start, end)."""
        for entry in _overlapping(self._by_position, start, end):
            self._by_due.remove(entry)
            self._by_position.remove(entry)
            self.count -= entry.number
            for first, last in _without(entry.position, entry.position + entry.number, start, end):
                self.push(entry.due, first, last - first, entry.attempts)

    def clear(self) -> None:
        self._by_due.clear()
        self._by_position.clear()
        self.count = 0


def _overlapping(by_position: Any, start: int, end: int) -> list[Any]:
    """The entries that have a position of [start, end)."""
    if start >= end or not by_position:
        return []
    found = list(by_position.irange_key(start, end, inclusive=(True, False)))
    before = next(by_position.irange_key(None, start, inclusive=(True, False), reverse=True), None)
    if before is not None and before.position + before.number > start:
        found.append(before)
    return found


def _without(first: int, last: int, start: int, end: int) -> list[tuple[int, int]]:
    """[first, last) less [start, end), in at most two pieces."""
    pieces = [(first, min(last, start)), (max(first, end), last)]
    return [(low, high) for low, high in pieces if low < high] if start < end else [(first, last)]
