"""What a channel owes besides the log in order: messages to be delivered again, and deferred ones.

Both are kept as ranges of positions with the attempts so far.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

_order = count()


@dataclass(slots=True)
class Again:
    """Messages to be delivered again, when the cursor has reached `mark`: their place in the queue."""

    position: int
    number: int
    attempts: int
    mark: int


class AgainQueue:
    """First in, first out."""

    __slots__ = ("_entries", "count")

    def __init__(self) -> None:
        self._entries: deque[Again] = deque()
        self.count = 0  # messages

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[Again]:
        return iter(self._entries)

    @property
    def first(self) -> Again:
        return self._entries[0]

    def push(self, position: int, number: int, attempts: int, mark: int) -> None:
        self._entries.append(Again(position, number, attempts, mark))
        self.count += number

    def take(self, number: int) -> None:
        """The first `number` messages of the first entry are gone."""
        entry = self._entries[0]
        self.count -= number
        if number == entry.number:
            self._entries.popleft()
        else:
            entry.position += number
            entry.number -= number

    def drop(self, start: int, end: int) -> None:
        """Away with the positions [start, end)."""
        kept: deque[Again] = deque()
        for entry in self._entries:
            for first, last in _without(entry.position, entry.position + entry.number, start, end):
                kept.append(Again(first, last - first, entry.attempts, entry.mark))
        self._entries = kept
        self.count = sum(entry.number for entry in kept)

    def clear(self) -> None:
        self._entries.clear()
        self.count = 0


class Later(NamedTuple):
    """Messages that wait for a time."""

    due: int
    order: int
    position: int
    number: int
    attempts: int


class LaterQueue:
    """By due time."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        self._heap: list[Later] = []
        self.count = 0  # messages

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __iter__(self) -> Iterator[Later]:
        """In no order."""
        return iter(self._heap)

    @property
    def first(self) -> Later:
        return self._heap[0]

    def push(self, due: int, position: int, number: int, attempts: int) -> None:
        heapq.heappush(self._heap, Later(due, next(_order), position, number, attempts))
        self.count += number

    def pop(self) -> Later:
        entry = heapq.heappop(self._heap)
        self.count -= entry.number
        return entry

    def drop(self, start: int, end: int) -> None:
        """Away with the positions [start, end)."""
        heap = []
        for entry in self._heap:
            for first, last in _without(entry.position, entry.position + entry.number, start, end):
                heap.append(entry._replace(position=first, number=last - first))
        heapq.heapify(heap)
        self._heap = heap
        self.count = sum(entry.number for entry in heap)

    def clear(self) -> None:
        self._heap.clear()
        self.count = 0


def _without(first: int, last: int, start: int, end: int) -> list[tuple[int, int]]:
    """[first, last) less [start, end), in at most two pieces."""
    pieces = [(first, min(last, start)), (max(first, end), last)]
    return [(low, high) for low, high in pieces if low < high] if start < end else [(first, last)]
