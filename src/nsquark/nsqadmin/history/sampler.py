"""Samples the cluster while a page is looked at, and a little longer, and feeds the history.

All pages share one answer: however many pages are open, the cluster is asked once an interval. A
cluster that takes long to answer is asked less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .history import History
from .reading import Observation

INTERVAL = 5.0
LINGER = 300.0  # a page that is opened again within that time finds its charts without a gap
logger = logging.getLogger(__name__)

Snapshot = TypeVar("Snapshot")


class Sampler(Generic[Snapshot]):
    """`take` asks the cluster, `read` reduces what it said to what is charted."""

    def __init__(
        self,
        take: Callable[[], Awaitable[Snapshot]],
        read: Callable[[Snapshot], Awaitable[Observation]],
        history: History,
        interval: float = INTERVAL,
        linger: float = LINGER,
    ) -> None:
        self.history = history
        self.interval = interval
        self._take = take
        self._read = read
        self._linger = linger
        self._latest: Snapshot | None = None
        self._taken = -1e9
        self._looked = -1e9
        self._observed = -1e9
        self._asking: asyncio.Task[Snapshot] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._feeding = asyncio.Lock()  # one observation at a time goes into the history

    async def snapshot(self, max_age: float | None = None) -> Snapshot:
        """What the cluster is, not older than `max_age` seconds (the interval). Raises what `take` raises."""
        self.look()
        age = time.monotonic() - self._taken
        if self._latest is not None and age <= (self.interval if max_age is None else max_age):
            return self._latest
        return await self._ask()

    def look(self) -> None:
        """A page is looked at: sample from now on, for as long as pages call this again."""
        self._looked = time.monotonic()
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.get_running_loop().create_task(self._sample(), name="nsqadmin sampler")

    def expire(self) -> None:
        """Something was changed: the next snapshot is a new one."""
        self._taken = -1e9
        self._asking = None  # the sample under way may be older than the change

    @property
    def sampling(self) -> bool:
        return self._sampling is not None and not self._sampling.done()

    async def stop(self) -> None:
        for task in (self._sampling, self._asking):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _ask(self) -> Snapshot:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._observe(), name="nsqadmin snapshot")
        # A page whose reader went away must not take the answer from the others.
        return await asyncio.shield(self._asking)

    async def _observe(self) -> Snapshot:
        begun = time.monotonic()
        snapshot = await self._take()
        # After a change the cluster is asked out of turn. Over a short time a rate would jump.
        if time.monotonic() - self._observed >= self.interval / 2:
            self._observed = time.monotonic()
            async with self._feeding:
                for _ in self.history.observing(time.time(), await self._read(snapshot)):
                    await asyncio.sleep(0)
        if begun >= self._taken:
            self._latest, self._taken = snapshot, time.monotonic()
        return snapshot

    async def _sample(self) -> None:
        while time.monotonic() - self._looked < self._linger:
            begun = time.monotonic()
            if begun - self._taken >= self.interval * 0.9:
                try:
                    await self._ask()
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    logger.debug("the cluster could not be sampled: %s", error)
            took = time.monotonic() - begun
            await asyncio.sleep(max(self.interval - took, 2 * took, 0.05))
