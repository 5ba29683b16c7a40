"""Showing messages of the log: what lies between two places, or from one place on, without a channel.

What is there at the start comes in the order of its time, over all topics and nsqds. Then each log is
followed, and messages are shown as they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator

from nsquark.client.config import Config
from nsquark.client.http_api import NsqlookupdHttp
from nsquark.errors import ConnectionLost, NsquarkError
from nsquark.http.client.protocol import BadStatus, nsq_headers
from nsquark.net.addresses import join_address

from ..command.options import consumer_config
from ..command.running import ToolError
from ..log_place import LATEST
from ..log_reader import LogMessage, LogReader, TopicNotFound
from .merging import merged
from .options import NAME, Options
from .output import Output

logger = logging.getLogger(__name__)


class LogTail:
    """The logs of the topics at all nsqds that have them."""

    def __init__(self, options: Options, output: Output) -> None:
        self._options = options
        self._output = output
        self._config: Config = consumer_config(NAME, options)
        self._enough = asyncio.Event()  # of one topic

    async def run(self) -> None:
        """Return at the place `--to`, or when one topic has shown as many messages as were asked for.

        Raises ToolError, LogError, ConnectionLost, OSError.
        """
        showing = asyncio.create_task(self._show_all(), name="log")
        enough = asyncio.create_task(self._enough.wait(), name="enough")
        try:
            await asyncio.wait({showing, enough}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()
        finally:
            for task in (showing, enough):
                task.cancel()
            await asyncio.gather(showing, enough, return_exceptions=True)

    async def _show_all(self) -> None:
        ranges = await self._find()
        # Logs are compared by nothing but the times of their messages.
        runs = {reader: self._runs(reader, start, end) for reader, (start, end) in ranges.items()}
        if len(runs) == 1:
            ((reader, only),) = runs.items()
            async for run in only:
                await self._show(reader, run)
        else:
            async for mixed in merged(runs):
                await self._show_mixed([(log.topic, message) for log, message in mixed])
        if self._options.to is None:
            following = [asyncio.create_task(self._follow(log, end)) for log, (_, end) in ranges.items()]
            try:
                await asyncio.gather(*following)
            finally:
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)

    def _runs(self, reader: LogReader, start: int, end: int | None) -> AsyncIterator[list[LogMessage]]:
        def lost(first: int, behind: int) -> None:
            logger.info(
                "topic %s at %s: the positions %d to %d are gone",
                reader.topic,
                reader.address,
                first,
                behind - 1,
            )

        return reader.runs(start, end, follow=end is None, lost=lost)

    async def _follow(self, reader: LogReader, position: int) -> None:
        """Show what comes. An nsqd that is away is asked again until it is back."""
        delays = self._config.reconnect.delays()
        while True:
            try:
                async for run in self._runs(reader, position, None):
                    await self._show(reader, run)
                    position = run[-1].position + 1
                    delays = self._config.reconnect.delays()
            except ConnectionLost as error:
                delay = next(delays)
                logger.info("%s; asking again in %.0f s", error, delay)
                await asyncio.sleep(delay)

    async def _show(self, reader: LogReader, run: list[LogMessage]) -> None:
        wanted = self._output.wanted(reader.topic, len(run))
        if wanted:
            await self._output.show(reader.topic, run[:wanted])
        await self._end_if_enough(reader.topic)

    async def _show_mixed(self, run: list[tuple[str, LogMessage]]) -> None:
        """One run of several logs, up to the message that is the last one wanted of its topic."""
        counts: Counter[str] = Counter()
        for index, (topic, _) in enumerate(run):
            counts[topic] += 1
            if counts[topic] == self._output.wanted(topic, counts[topic] + 1):
                run = run[: index + 1]
                break
        await self._output.show_mixed(run)
        for topic in counts:
            await self._end_if_enough(topic)

    async def _end_if_enough(self, topic: str) -> None:
        if not self._output.wanted(topic, 1):
            self._enough.set()
            await asyncio.Event().wait()  # `run` cancels this

    # ---- where

    async def _find(self) -> dict[LogReader, tuple[int, int]]:
        """The positions to read of each log. Raises ToolError for a topic that no nsqd has."""
        options, config = self._options, self._config
        assert options.from_ is not None
        ranges = {}
        for topic in options.topic:
            found = False
            for address in options.nsqd_http_address or await self._nsqds(topic):
                reader = LogReader(address, topic, tls=config.ssl_context(), secret=config.auth_secret)
                try:
                    latest = await reader.find(LATEST)
                except TopicNotFound:
                    continue
                start = await reader.find(options.from_)
                end = latest if options.to is None else await reader.find(options.to)
                ranges[reader] = (start, min(end, latest))
                found = True
            if not found:
                raise ToolError(f"no nsqd has the topic {topic!r}")
        positions = [place for place in (options.from_, options.to) if place and place.position is not None]
        if positions and len(ranges) > 1:
            raise ToolError(
                f"position {positions[0].position}: each log counts its own, and there are {len(ranges)} logs"
            )
        return ranges

    async def _nsqds(self, topic: str) -> list[str]:
        """The HTTP addresses of the nsqds that the nsqlookupds list. Raises ToolError if none answers."""
        config = self._config
        secret = config.auth_secret if config.lookupd_authorization else None
        nsqds: dict[str, None] = {}
        failed: list[NsquarkError] = []
        for address in self._options.lookupd_http_address:
            lookupd = NsqlookupdHttp(address, timeout=config.dial_timeout + 5.0, headers=nsq_headers(secret))
            try:
                listed = (await lookupd.lookup(topic)).get("producers") or []
                nsqds |= {join_address(each["broadcast_address"], each["http_port"]): None for each in listed}
            except BadStatus as error:
                if error.status != 404:  # it does not know the topic
                    failed.append(error)
            except NsquarkError as error:
                failed.append(error)
            except (KeyError, TypeError, AttributeError):
                failed.append(ConnectionLost(f"{address}: not an answer of nsqlookupd"))
        if len(failed) == len(self._options.lookupd_http_address):
            raise ToolError(str(failed[0]))
        for failure in failed:
            logger.info("nsqlookupd: %s", failure)
        return list(nsqds)
