"""How a forwarding utility runs: consumers that start together, signals, and a line at the end.

The first SIGINT or SIGTERM drains: no more messages are taken, those on their way are answered. A second one
hurries: what has no answer yet goes back to nsqd.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nsquark.client import Consumer
from nsquark.client.config import Config
from nsquark.client.events import ConnectionRefused, Event
from nsquark.errors import NsquarkError, UsageError

from ..command.options import Consuming
from ..command.running import ToolError

logger = logging.getLogger(__name__)

_DRAIN = 30.0  # seconds, as NSQ's consumers have


@dataclass(slots=True)
class Counts:
    """What a utility has done. A message that is requeued may be counted again."""

    forwarded: int = 0
    requeued: int = 0
    dropped: int = 0  # finished without being forwarded, as the flags ask

    def __str__(self) -> str:
        dropped = f", {self.dropped} left out" if self.dropped else ""
        return f"{self.forwarded} messages forwarded, {self.requeued} requeued{dropped}"


Work = Callable[[Consumer], Coroutine[Any, Any, None]]


class Forwarding:
    """The consumers of a utility, one for each topic, and what it does with each until a signal comes."""

    def __init__(self, topics: Sequence[str], channel: str, options: Consuming, config: Config) -> None:
        """Raises ToolError for a name or an address that is none."""
        self._refused: Exception | None = None  # the first attempt to connect that failed
        self._direct = bool(options.nsqd_tcp_address)
        try:
            self._consumers = [
                Consumer(
                    topic,
                    channel,
                    nsqd=options.nsqd_tcp_address,
                    lookupd=options.lookupd_http_address,
                    config=config,
                    # An nsqd that was given and is not there ends the program; an nsqlookupd is asked again.
                    fail_fast=self._direct,
                    on_event=self._on_event,
                )
                for topic in dict.fromkeys(topics)
            ]
        except UsageError as error:
            raise ToolError(str(error)) from None

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionRefused) and self._refused is None:
            self._refused = event.error

    async def run(self, work: Work, counts: Counts) -> None:
        """Start the consumers, run `work` with each until a signal has closed them, and log the counts.

        Raises ToolError if an nsqd that was given cannot be reached at the start, and what `work` raises.
        """
        stop = _Stop()
        stopped = asyncio.create_task(stop.first.wait())
        try:
            if await self._start(stopped):
                await self._work(work, stop, stopped)
                logger.info("%s", counts)
        finally:
            await _cancel([stopped])
            await asyncio.gather(*(consumer.close(0) for consumer in self._consumers), return_exceptions=True)

    async def _start(self, stopped: asyncio.Task[Any]) -> bool:
        """False if a signal came first."""
        starting = {asyncio.create_task(consumer.start()) for consumer in self._consumers}
        try:
            with _quiet_connector() if self._direct else contextlib.nullcontext():
                waiting: set[asyncio.Task[Any]] = {*starting, stopped}
                while not stopped.done() and waiting != {stopped}:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
        except NsquarkError as error:
            raise ToolError(str(error)) from None
        finally:
            await _cancel(starting)
        if stopped.done():
            return False
        # NSQ's utilities end when any nsqd that was given is not there, not only when all are.
        if self._direct and self._refused is not None:
            raise ToolError(str(self._refused))
        return True

    async def _work(self, work: Work, stop: _Stop, stopped: asyncio.Task[Any]) -> None:
        workers = [asyncio.create_task(work(consumer)) for consumer in self._consumers]
        try:
            await asyncio.wait((*workers, stopped), return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                if worker.done():
                    worker.result()
            await _close(self._consumers, stop)
        finally:
            await _cancel(workers)


@contextlib.contextmanager
def _quiet_connector() -> Iterator[None]:
    """Do not let the client tell of a failed connection that ends the program, which tells of it too."""
    client = logging.getLogger("nsquark.client.consumer.connector")
    client.addFilter(_is_no_warning)
    try:
        yield
    finally:
        client.removeFilter(_is_no_warning)


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING


async def _close(consumers: Iterable[Consumer], stop: _Stop) -> None:
    closing = asyncio.gather(*(consumer.close(_DRAIN) for consumer in consumers))
    hurried = asyncio.create_task(stop.second.wait())
    try:
        await asyncio.wait((closing, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            logger.info("stopping at once: messages without an answer are requeued")
            await asyncio.gather(*(consumer.close(0) for consumer in consumers))
        await closing
    finally:
        await _cancel([hurried])


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Stop:
    """The first and the second SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._signal)

    def _signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
