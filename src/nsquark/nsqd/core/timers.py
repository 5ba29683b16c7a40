"""Timers for many objects with one timer of the event loop.

An object is waiting for at most one time, the earliest it was scheduled for; scheduling it again for a later
time does nothing, so those whose time keeps moving let it come and look then.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timed(Protocol):
    wakes_at: int
    """When it is scheduled for, NEVER if it is not. Belongs to Timers."""

    def wake(self, now: int) -> None: ...


NEVER = 1 << 63
LONGEST = 86400.0  # seconds that the event loop is asked to wait: some cannot count the years of an int64
SLICE_NS = 1_000_000  # how long due timers may run before other work has a turn

logger = logging.getLogger(__name__)


class Timers:
    """Calls `wake` of each object at its time, by the given clock, which counts nanoseconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int], look_every: float = math.inf
    ) -> None:
        """A clock that can be set is looked at every `look_every` seconds while anything waits."""
        self._loop = loop
        self._clock = clock
        self._look_every = look_every
        self._heap: list[_Entry] = []
        self._entries: dict[Timed, _Entry] = {}
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed = NEVER

    def schedule(self, timed: Timed, when: int) -> None:
        if when >= timed.wakes_at:
            return
        self._forget(timed)
        timed.wakes_at = when
        entry = _Entry(when, next(self._order), timed)
        self._entries[timed] = entry
        heapq.heappush(self._heap, entry)
        if when < self._armed:
            self._arm(when)

    def cancel(self, timed: Timed) -> None:
        """It is not woken, and not held on to."""
        timed.wakes_at = NEVER
        self._forget(timed)

    def _forget(self, timed: Timed) -> None:
        entry = self._entries.pop(timed, None)
        if entry is None:
            return
        entry.timed = None
        # Empty entries stay until their time or until they are the most.
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = [each for each in self._heap if each.timed is not None]
            heapq.heapify(self._heap)

    def _arm(self, when: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = when
        delay = max(0, when - self._clock()) / 1e9
        self._handle = self._loop.call_later(min(delay, self._look_every, LONGEST), self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed = NEVER
        now = self._clock()
        until = now + SLICE_NS
        while self._heap and self._heap[0].when <= now:
            timed = heapq.heappop(self._heap).timed
            if timed is None:
                continue
            del self._entries[timed]
            timed.wakes_at = NEVER
            try:
                timed.wake(now)
            except Exception:  # one that fails must not stop the clock for all others
                logger.exception("a timer failed")
            if self._clock() >= until:
                break
        if self._heap:
            # a little later rather than too early: the loop's clock counts milliseconds
            self._arm(max(self._heap[0].when, now + 200_000))

    def close(self) -> None:
        self._heap.clear()
        self._entries.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed = NEVER


class _Entry:
    __slots__ = ("order", "timed", "when")

    def __init__(self, when: int, order: int, timed: Timed) -> None:
        self.when = when
        self.order = order
        self.timed: Timed | None = timed

    def __lt__(self, other: _Entry) -> bool:
        return (self.when, self.order) < (other.when, other.order)
