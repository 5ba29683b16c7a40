"""The program `to_nsq`: stdin is read, cut, packed into MPUBs, and sent to all destinations.

The MPUBs are pipelined: what was read goes out at once, and the answers come while more is read. The order is
that of the input at every destination. The program ends well when each destination has answered everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from nsquark import kernel
from nsquark.cli import process
from nsquark.client.addresses import as_addresses
from nsquark.client.config import DEFAULT_MAX_BODY_SIZE, DEFAULT_MAX_MSG_SIZE
from nsquark.errors import NsquarkError
from nsquark.wire.commands import line, pack_command

from ..command.running import Tool, ToolError
from .destination import Destination
from .options import FLAGS, NAME, Options, check, producer_config
from .splitter import Splitter, Throttle
from .stdin import Input

logger = logging.getLogger(__name__)

# Seconds for the answers that are under way when a signal or an error ends the program.
_LAST_ANSWERS = 0.6


class Publishing:
    """One run of the program."""

    def __init__(self, options: Options) -> None:
        config = producer_config(options)
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._destinations = [
            Destination(address, config, self._fail) for address in as_addresses(options.nsqd_tcp_address)
        ]
        self._pub = line("PUB", options.topic)
        self._max_msg_size = config.max_msg_size or DEFAULT_MAX_MSG_SIZE
        self._max_body_size = config.max_body_size or DEFAULT_MAX_BODY_SIZE
        self._splitter = Splitter(os.fsencode(options.delimiter), self._max_msg_size)
        self._throttle = Throttle(options.rate, self._loop.time())
        self._input = Input()
        self._stop = process.stop_signal()

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run(self) -> None:
        """Raises ToolError, with how many messages are stored where."""
        work = asyncio.create_task(self._publish_input(), name="publishing")
        stop = asyncio.create_task(self._stop.wait(), name="signals")
        ends: set[asyncio.Future[Any]] = {work, self._failed}
        try:
            await asyncio.wait({*ends, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self._failed.done():
                self._input.abandon()
                await asyncio.wait(ends, timeout=_LAST_ANSWERS, return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and not self._failed.done():
                    raise ToolError(f"interrupted before all was answered; {self._report()}")
            await (self._failed if self._failed.done() else work)
            if self._stop.is_set():
                rest = "" if self._input.ended else "; the rest of the input is abandoned"
                logger.info("interrupted; %s%s", self._report(), rest)
        except (NsquarkError, OSError) as error:
            if isinstance(error, ToolError):
                raise
            await self._settle()
            raise ToolError(f"{error}; {self._report()}") from None
        finally:
            if self._failed.done():
                self._failed.exception()
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in self._destinations))

    async def _publish_input(self) -> None:
        """Return when everything is answered."""
        splitter = self._splitter
        while data := await self._input.read():
            await self._publish(splitter.feed(data))
            if splitter.too_long:
                await self._all_answered()
                raise ToolError(
                    f"a piece of more than {self._max_msg_size} bytes"
                    f" (--producer-opt=max_msg_size,N allows more); {self._report()}"
                )
        if not self._input.abandoned:
            await self._publish([splitter.rest()])
        await self._all_answered()

    async def _publish(self, pieces: list[bytes]) -> None:
        """Send pieces as the throttle lets them go. When the input is abandoned, so are those that wait."""
        while pieces:
            count = self._throttle.take(len(pieces), self._loop.time())
            if not count:
                try:
                    async with asyncio.timeout(self._throttle.wait()):
                        await self._stop.wait()
                    self._input.abandon()
                    return
                except TimeoutError:
                    continue
            bodies = [*filter(None, pieces[:count] if count < len(pieces) else pieces)]
            pieces = pieces[count:]
            if bodies:
                await self._send(bodies)

    async def _send(self, bodies: list[bytes]) -> None:
        if not all(each.connected for each in self._destinations):
            await asyncio.gather(*(each.connect() for each in self._destinations))
        for command, messages in self._pack(bodies):
            for destination in self._destinations:
                await destination.publish(command, messages)

    def _pack(self, bodies: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
        """Commands of no more than `max_body_size`, each with the number of its messages."""
        if len(bodies) == 1:
            yield pack_command(self._pub, bodies[0]), 1
        elif 4 + 4 * len(bodies) + sum(map(len, bodies)) > self._max_body_size:
            half = len(bodies) // 2
            yield from self._pack(bodies[:half])
            yield from self._pack(bodies[half:])
        else:
            _, command = kernel.pack_mpub(b"M" + self._pub, bodies, self._max_msg_size)
            yield command, len(bodies)

    async def _all_answered(self) -> None:
        for destination in self._destinations:
            await destination.answered()
            if destination.error is not None:
                raise destination.error

    async def _settle(self) -> None:
        """Wait a moment for what the other destinations still answer, so that their numbers are right."""
        try:
            async with asyncio.timeout(_LAST_ANSWERS):
                await asyncio.gather(*(each.answered() for each in self._destinations))
        except TimeoutError:
            pass

    def _report(self) -> str:
        return ", ".join(destination.report() for destination in self._destinations)


async def run(options: Options) -> None:
    if sys.stdin is None:
        raise ToolError("stdin is closed")
    if options.rate >= 1:
        logger.info("Throttling messages rate to max:%d/second", options.rate)
    await Publishing(options).run()


TOOL = Tool(NAME, FLAGS, check, run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `to_nsq`; returns the exit code."""
    return TOOL.main(argv)
