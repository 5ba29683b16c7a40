"""Long work on the event loop, a slice at a time, with turns for all other work in between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

SLICE = 0.001  # seconds


class Chores:
    """Each chore has a name, and is under way once at most."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._under_way: dict[str, Iterator[None]] = {}

    def start(self, name: str, steps: Callable[[], Iterator[None]]) -> None:
        """Begin a chore, which may be left after each of its steps; not if it is still under way."""
        if name not in self._under_way:
            self._under_way[name] = steps()
            self._run(name)

    def _run(self, name: str) -> None:
        steps = self._under_way.get(name)
        if steps is None:
            return
        until = self._clock() + SLICE
        try:
            for _ in steps:
                if self._clock() >= until:
                    self._loop.call_soon(self._run, name)
                    return
        except Exception:  # the next time may be better
            logger.exception("%s failed", name)
        self._under_way.pop(name, None)

    def close(self) -> None:
        """Leave everything as it is."""
        self._under_way.clear()
