"""A set of positions as sorted, disjoint half-open ranges.

Positions are added and dropped mostly in order. So adding at the end merges with the last range in constant
time, and ranges dropped at the front stay in the lists, before `_head`, until they are the larger part of
them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

MANY_GONE = 64


class Ranges:
    __slots__ = ("_ends", "_head", "_starts", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._head = 0  # the ranges before this index of the lists are dropped
        self.count = 0  # how many positions are in the set

    def __bool__(self) -> bool:
        return len(self._starts) > self._head

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as they are now. The set may be changed meanwhile."""
        return zip(self._starts[self._head :], self._ends[self._head :], strict=True)

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._starts, position, self._head) - 1
        return at >= self._head and position < self._ends[at]

    @property
    def end(self) -> int:
        """The position behind the last range; 0 if there is none."""
        return self._ends[-1] if self else 0

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any of [start, end) is in the set."""
        at = bisect_left(self._starts, end, self._head) - 1
        return start < end and at >= self._head and self._ends[at] > start

    def add(self, start: int, end: int) -> None:
        """Put [start, end) into the set, merging with what it touches."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if not self or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            self.count += end - start
            return
        if start == ends[-1]:
            ends[-1] = end
            self.count += end - start
            return
        # The ranges that overlap or touch end at or after `start` and begin at or before `end`.
        low = bisect_left(ends, start, self._head)
        high = bisect_right(starts, end, self._head)
        if low < high:
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
            self.count -= sum(ends[low:high]) - sum(starts[low:high])
        self.count += end - start
        starts[low:high] = [start]
        ends[low:high] = [end]

    def drop_below(self, position: int) -> None:
        """Forget everything before `position`."""
        starts, ends, head = self._starts, self._ends, self._head
        if not self or starts[head] >= position:
            return
        kept = bisect_right(ends, position, head)
        self.count -= sum(ends[head:kept]) - sum(starts[head:kept])
        self._head = kept
        if kept > MANY_GONE and 2 * kept > len(starts):
            del starts[:kept]
            del ends[:kept]
            self._head = kept = 0
        if self and starts[kept] < position:
            self.count -= position - starts[kept]
            starts[kept] = position

    def drop_from(self, position: int) -> None:
        """Forget everything at and behind `position`."""
        starts, ends = self._starts, self._ends
        keep = bisect_left(starts, position, self._head)
        self.count -= sum(ends[keep:]) - sum(starts[keep:])
        del starts[keep:]
        del ends[keep:]
        if self and ends[-1] > position:
            self.count -= ends[-1] - position
            ends[-1] = position

    def next_gap(self, position: int) -> int:
        """The first position at or behind `position` that is not in the set."""
        at = bisect_right(self._starts, position, self._head) - 1
        if at >= self._head and position < self._ends[at]:
            return self._ends[at]
        return position

    def next_start(self, position: int) -> int | None:
        """Where the first range at or behind `position` begins, or None; `position` is not in the set."""
        at = bisect_left(self._starts, position, self._head)
        return self._starts[at] if at < len(self._starts) else None

    def first_behind(self, position: int) -> tuple[int, int] | None:
        """The first range that ends behind `position`, whole, or None."""
        at = bisect_right(self._ends, position, self._head)
        return (self._starts[at], self._ends[at]) if at < len(self._ends) else None

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is not in the set, in order."""
        while start < end:
            start = self.next_gap(start)
            stop = self.next_start(start)
            stop = end if stop is None else min(stop, end)
            if start < stop:
                yield start, stop
            start = stop

    def count_from(self, position: int) -> int:
        """How many positions at or behind `position` are in the set. Cheap if few ranges lie before it."""
        starts, ends, head = self._starts, self._ends, self._head
        at = bisect_right(ends, position, head)
        before = sum(ends[head:at]) - sum(starts[head:at])
        if at < len(starts) and starts[at] < position:
            before += position - starts[at]
        return self.count - before
