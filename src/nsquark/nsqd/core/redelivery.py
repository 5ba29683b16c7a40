"""What a channel owes besides the log in order: requeued messages and deferred messages.

Both queues hold ranges of positions with the attempts so far. Each queue keeps two orders: the order in
which its messages are delivered, and the order of their positions. The second order gives the lowest position
without a walk, and finds the ranges that overlap a given one. So the cost of a drop depends on what is
dropped, and not on what is kept.

The ranges of a queue do not overlap: a channel has every message in one place only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedKeyList

MANY_DROPPED = 1000
BLOCK_ENTRIES = 500
LAST_POSITION = (1 << 64) - 1


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


class DeferredBlock:
    """Some entries of a `DeferredQueue` that follow each other by position: a column for each field."""

    __slots__ = ("attempts", "dues", "numbers", "positions")

    def __init__(self) -> None:
        self.dues = array("q")
        self.positions = array("Q")
        self.numbers = array("I")
        self.attempts = array("I")

    def insert(self, at: int, due: int, position: int, number: int, attempts: int) -> None:
        self.dues.insert(at, due)
        self.positions.insert(at, position)
        self.numbers.insert(at, number)
        self.attempts.insert(at, attempts)

    def entry(self, at: int) -> DeferredRange:
        return DeferredRange(self.dues[at], self.positions[at], self.numbers[at], self.attempts[at])

    def remove(self, first: int, last: int) -> None:
        """Remove the entries [first, last)."""
        del self.dues[first:last]
        del self.positions[first:last]
        del self.numbers[first:last]
        del self.attempts[first:last]

    def split(self) -> DeferredBlock:
        """Keep the first half; returns the other one."""
        half = len(self.positions) // 2
        other = DeferredBlock()
        other.dues, other.positions = self.dues[half:], self.positions[half:]
        other.numbers, other.attempts = self.numbers[half:], self.attempts[half:]
        self.remove(half, len(self.positions))
        return other


class DeferredQueue:
    """Deferred messages, by due time.

    The entries are in blocks, by position. Their order in time is a heap of keys, which are numbers: the due
    time and the position. A key is stale when its entry was dropped. Stale keys stay in the heap until they
    are its first, or the most of it.
    """

    __slots__ = ("_blocks", "_entries", "_keys", "_starts", "count")

    def __init__(self) -> None:
        self._blocks: list[DeferredBlock] = []  # none is empty
        self._starts: list[int] = []  # for each block: no position in it is lower, and all before it are
        self._keys: list[int] = []  # a heap; the first is not stale
        self._entries = 0
        self.count = 0  # messages

    def __bool__(self) -> bool:
        return self._entries > 0

    def __iter__(self) -> Iterator[DeferredRange]:
        """By due time. The queue must not change meanwhile."""
        keys = self._keys
        # What may come next: keys of the heap whose parents were visited, each with its place there.
        following = [(keys[0], 0)] if keys else []
        before = -1
        while following:
            key, at = heappop(following)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(keys):
                    heappush(following, (keys[child], child))
            if key != before and (entry := self._find(key)) is not None:
                yield entry
            before = key

    @property
    def next_due(self) -> int:
        """The due time of the first entry."""
        return self._keys[0] >> 64

    @property
    def low(self) -> int | None:
        """The lowest position in the queue."""
        return self._blocks[0].positions[0] if self._blocks else None

    def by_position(self) -> Iterator[DeferredRange]:
        for block in self._blocks:
            for at in range(len(block.positions)):
                yield block.entry(at)

    def from_position(self, position: int, most: int) -> list[DeferredRange]:
        """At most `most` of the entries that begin with this position or a higher one, in that order."""
        found: list[DeferredRange] = []
        for index in range(self._block_of(position), len(self._blocks)):
            block = self._blocks[index]
            at = bisect_left(block.positions, position)
            end = min(len(block.positions), at + most - len(found))
            found += [block.entry(each) for each in range(at, end)]
            if len(found) >= most:
                break
        return found

    def push(self, due: int, position: int, number: int, attempts: int) -> None:
        heappush(self._keys, due << 64 | position)
        self.count += number
        self._entries += 1
        blocks = self._blocks
        if not blocks or position > blocks[-1].positions[-1]:  # as most of them are
            if not blocks or len(blocks[-1].positions) >= BLOCK_ENTRIES:
                blocks.append(DeferredBlock())
                self._starts.append(position)
            block = blocks[-1]
            block.dues.append(due)
            block.positions.append(position)
            block.numbers.append(number)
            block.attempts.append(attempts)
            return
        index = self._block_of(position)
        block = blocks[index]
        self._starts[index] = min(self._starts[index], position)
        block.insert(bisect_left(block.positions, position), due, position, number, attempts)
        if len(block.positions) > BLOCK_ENTRIES:
            other = block.split()
            blocks.insert(index + 1, other)
            self._starts.insert(index + 1, other.positions[0])

    def pop(self) -> DeferredRange:
        """Take the first entry."""
        position = heappop(self._keys) & LAST_POSITION
        index = self._block_of(position)
        block = self._blocks[index]
        at = bisect_left(block.positions, position)
        entry = block.entry(at)
        block.remove(at, at + 1)
        if not block.positions:
            del self._blocks[index], self._starts[index]
        self.count -= entry.number
        self._entries -= 1
        self._forget_stale()
        return entry

    def drop(self, start: int, end: int) -> None:
        """Forget the positions [start, end)."""
        if start >= end or not self._blocks:
            return
        self._cut(start)
        self._cut(end)
        index = self._block_of(start)
        while index < len(self._blocks):
            block = self._blocks[index]
            first, last = bisect_left(block.positions, start), bisect_left(block.positions, end)
            self.count -= sum(block.numbers[first:last])
            self._entries -= last - first
            is_last = last < len(block.positions)
            block.remove(first, last)
            if block.positions:
                index += 1
            else:
                del self._blocks[index], self._starts[index]
            if is_last:
                break
        self._forget_stale()

    def clear(self) -> None:
        self._blocks.clear()
        self._starts.clear()
        self._keys.clear()
        self._entries = self.count = 0

    def _block_of(self, position: int) -> int:
        """Where in `_blocks` the entry of this position is, or would be."""
        return max(0, bisect_right(self._starts, position) - 1)

    def _find(self, key: int) -> DeferredRange | None:
        """The entry with this key; None if the key is stale."""
        due, position = key >> 64, key & LAST_POSITION
        block = self._blocks[self._block_of(position)]
        at = bisect_left(block.positions, position)
        if at < len(block.positions) and block.positions[at] == position and block.dues[at] == due:
            return block.entry(at)
        return None

    def _cut(self, position: int) -> None:
        """Make two entries of one that holds both this position and the one before it."""
        index = self._block_of(position)
        at = bisect_left(self._blocks[index].positions, position) - 1
        if at < 0:  # the entry before the position is the last of the block before
            if index == 0:
                return
            index -= 1
            at = len(self._blocks[index].positions) - 1
        block = self._blocks[index]
        due, first, number, attempts = block.entry(at)
        if first + number > position:
            block.numbers[at] = position - first
            self.count -= first + number - position
            self.push(due, position, first + number - position, attempts)

    def _forget_stale(self) -> None:
        """Have the first key be none that is stale, and most of the keys."""
        keys = self._keys
        if not self._entries:
            keys.clear()
        elif len(keys) - self._entries > max(MANY_DROPPED, self._entries):
            self._keys = [entry.due << 64 | entry.position for entry in self.by_position()]
            heapify(self._keys)
        elif len(keys) > self._entries:
            while self._find(keys[0]) is None:
                heappop(keys)


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
