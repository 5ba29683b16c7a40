"""Timers for many objects with one timer of the event loop.

An object is waiting for at most one time, the earliest it was scheduled for; scheduling it again for a later
time does nothing, so those whose time keeps moving let it come and look then.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timed(Protocol):
    wakes_at: int
    """When it is scheduled for, NEVER if it is not. Belongs to Timers."""

    def wake(self, now: int) -> None: ...


NEVER = 1 << 63

logger = logging.getLogger(__name__)


class Timers:
    """Calls `wake` of each object at its time, by the given clock, which counts nanoseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int]) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[tuple[int, int, Timed]] = []
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed = NEVER

    def schedule(self, timed: Timed, when: int) -> None:
        if when >= timed.wakes_at:
            return
        timed.wakes_at = when
        heapq.heappush(self._heap, (when, next(self._order), timed))
        if when < self._armed:
            self._arm(when)

    def cancel(self, timed: Timed) -> None:
        """Its entry stays in the heap until its time and does nothing then."""
        timed.wakes_at = NEVER

    def _arm(self, when: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = when
        self._handle = self._loop.call_later(max(0, when - self._clock()) / 1e9, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed = NEVER
        now = self._clock()
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, timed = heapq.heappop(heap)
            if timed.wakes_at == when:
                timed.wakes_at = NEVER
                try:
                    timed.wake(now)
                except Exception:  # one that fails must not stop the clock for all others
                    logger.exception("a timer failed")
        if heap:
            # a little later rather than too early: the loop's clock counts milliseconds
            self._arm(max(heap[0][0], now + 200_000))

    def close(self) -> None:
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed = NEVER
