"""Archives one topic: takes runs of messages, has them written and synced in a thread, and finishes them.

A message is finished when the disk holds it, and not before. While the disk works, the event loop goes on
receiving.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from nsquark.client import Config, Consumer, Event, Message

from .encoding import Lines
from .errors import DiskError
from .rotation import Archive

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 2.0  # seconds for an nsqd to answer CLS, when nothing is left to finish
T = TypeVar("T")


@dataclass(slots=True)
class Subscription:
    """Where a topic is consumed from, and how."""

    topic: str
    channel: str
    nsqd: Sequence[str]
    lookupd: Sequence[str]
    config: Config
    on_event: Callable[[Event], None] | None = None


@dataclass(slots=True)
class Work:
    """What one call of the thread does."""

    messages: list[Message] = field(default_factory=list)  # to write
    sync: bool = False
    tick: bool = False  # the sync interval is over
    close: bool = False


class TopicWriter:
    """One topic with its consumer and its archive. `run` ends after `stop`, or with a DiskError."""

    def __init__(
        self, source: Subscription, archive: Archive, lines: Lines, sync_interval: float, threads: Executor
    ) -> None:
        self.topic = source.topic
        self.archive = archive
        self.archived = 0  # messages that were synced
        self.late = 0  # of those, finished after their timeout or their connection's end: they come again
        self._label = f"[{source.topic}/{source.channel}]"
        self._lines = lines
        self._sync_interval = sync_interval
        self._threads = threads
        self._max_in_flight = source.config.max_in_flight or 1
        self._consumer = Consumer(
            source.topic,
            source.channel,
            nsqd=source.nsqd,
            lookupd=source.lookupd,
            config=source.config,
            on_event=source.on_event,
        )
        self._loop = asyncio.get_running_loop()
        self._held: list[Message] = []  # handed to the archive, and not finished
        self._next_tick = self._loop.time() + sync_interval
        self._sync_by = float("inf")  # half of the time that the oldest held message has
        self._stopping = False
        self._reopening = False
        self._wait: asyncio.Timeout | None = None  # while there is nothing to do

    def stop(self) -> None:
        self._stopping = True
        self._wake_up()

    def reopen(self) -> None:
        """Finish what is held and close the file. The next message or tick opens one."""
        self._reopening = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wait is not None and not self._wait.expired():  # else it wakes up by itself
            self._wait.reschedule(self._loop.time())

    async def run(self, prepare: Callable[[], None] | None = None) -> None:
        """`prepare` is called in the thread before the first message is asked for."""
        if prepare is not None:
            await self._in_thread(prepare)
        try:
            await self._consumer.start()
            while not self._stopping:
                await self._do(self._due(await self._next_run()))
            await self._stop()
        finally:
            await self._consumer.close(0)

    # ---- deciding

    async def _next_run(self) -> list[Message]:
        """The messages that are here, or none when something else is to be done first."""
        limit = max(1, self._max_in_flight - len(self._held))
        try:
            async with asyncio.timeout_at(min(self._next_tick, self._sync_by)) as self._wait:
                if self._stopping or self._reopening:  # since the caller has looked
                    return []
                return await self._consumer.take(limit)
        except TimeoutError:
            return []
        finally:
            self._wait = None

    def _due(self, run: list[Message]) -> Work:
        now = self._loop.time()
        if run and not self._held:
            self._sync_by = now + run[0].time_left() / 2
        tick, close = now >= self._next_tick, self._reopening
        if tick:
            self._next_tick += self._sync_interval
            if self._next_tick <= now:  # after a delay there is one tick, not one for each interval
                self._next_tick = now + self._sync_interval
        self._reopening = False
        full = len(self._held) + len(run) >= self._max_in_flight
        sync = tick or close or full or now >= self._sync_by or self._consumer.is_starved
        return Work(run, sync, tick, close)

    # ---- doing

    async def _do(self, work: Work) -> None:
        self._held += work.messages
        if not (work.messages or work.tick or work.close or (work.sync and self._held)):
            return
        if await self._in_thread(self._work, work, time.time()):
            self._finish()

    def _work(self, work: Work, now: float) -> bool:
        """In the thread. True if the disk holds everything that was written."""
        archive = self.archive
        sync = work.sync
        if work.messages and archive.write(self._lines(work.messages), now):
            sync = True
        if work.tick:
            archive.tick(now)
        if sync:
            archive.sync()
        if work.close:
            archive.close()
        return archive.durable

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """The call's result. The messages that are held are kept from timing out meanwhile."""
        timer = self._touch_later()
        try:
            return await self._loop.run_in_executor(self._threads, call, *arguments)
        except DiskError as error:
            raise DiskError(f"{self._label} {error}") from error
        except OSError as error:
            raise DiskError(f"{self._label} {error}") from error
        finally:
            timer.cancel()

    def _touch_later(self) -> _Repeating:
        return _Repeating(self._loop, self._touch, self._pause())

    def _pause(self) -> float:
        return max(0.5, self._held[0].time_left() / 2) if self._held else 10.0

    def _touch(self) -> float:
        """A slow disk shall not have nsqd deliver again what is being written."""
        touched = sum(message.touch() for message in self._held)
        if touched:
            logger.warning("%s the disk is slow, touched %d messages", self._label, touched)
        return self._pause()

    def _finish(self) -> None:
        held, self._held = self._held, []
        self._sync_by = float("inf")
        if held:
            logger.debug("%s synced %d records to disk", self._label, len(held))
        self.archived += len(held)
        late = len(held) - sum(message.finish() for message in held)
        if late:
            self.late += late
            logger.warning("%s %d messages were synced too late and will come again", self._label, late)

    # ---- the end

    async def _stop(self) -> None:
        """Archive what has come, close the file, and let nsqd have the rest."""
        self._consumer.pause()
        queued = self._consumer.stats().queued
        run = await self._consumer.take(queued) if queued else []
        await self._do(Work(run, sync=True, close=True))
        await self._consumer.close(_CLOSE_TIMEOUT)


class _Repeating:
    """Calls a function after a pause, and again after each pause that it returns, until `cancel`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], float], pause: float) -> None:
        self._loop = loop
        self._call = call
        self._handle = loop.call_later(pause, self._due)

    def _due(self) -> None:
        self._handle = self._loop.call_later(self._call(), self._due)

    def cancel(self) -> None:
        self._handle.cancel()
