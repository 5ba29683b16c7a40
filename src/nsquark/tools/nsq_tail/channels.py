"""Showing messages as they come: a consumer of the same channel for each topic."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from nsquark.client import Consumer
from nsquark.client.events import ConnectionRefused, Event

from ..command.options import consumer_config
from ..command.running import ToolError
from .options import NAME, Options
from .output import Output

logger = logging.getLogger(__name__)

# Seconds: for what is being written at the end, and for everything that the end takes.
_LAST_ANSWERS: Final = 0.4
_END: Final = 0.7


class ChannelTail:
    """Consumers, one for each topic. A message is finished when it is written."""

    def __init__(self, options: Options, output: Output) -> None:
        self._options = options
        self._output = output
        self._consumers: list[Consumer] = []
        self._refused: list[ConnectionRefused] = []

    async def run(self) -> None:
        """Return when one topic has shown as many messages as were asked for.

        Raises ToolError if an nsqd given by its address cannot be reached at the start, and OSError.
        """
        try:
            for topic in self._options.topic:
                await self._start(topic)
            showing = [asyncio.create_task(self._show(each), name=each.topic) for each in self._consumers]
            try:
                done, _ = await asyncio.wait(showing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                # A run that is being written is finished yet; no other is begun.
                await self._close()
                for task in showing:
                    task.cancel()
                await asyncio.gather(*showing, return_exceptions=True)
        finally:
            await self._close()

    async def _start(self, topic: str) -> None:
        options = self._options
        logger.info("Adding consumer for topic: %s", topic)
        consumer = Consumer(
            topic,
            options.channel,
            nsqd=options.nsqd_tcp_address,
            lookupd=options.lookupd_http_address,
            config=consumer_config(NAME, options),
            fail_fast=not options.lookupd_http_address,
            on_event=self._on_event,
        )
        self._consumers.append(consumer)
        await consumer.start()
        # `fail_fast` forgives one of several. NSQ does not, and scripts rely on it.
        if self._refused and options.nsqd_tcp_address:
            raise ToolError(str(self._refused[0].error))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ConnectionRefused):
            self._refused.append(event)

    async def _show(self, consumer: Consumer) -> None:
        output, topic = self._output, consumer.topic
        while wanted := output.wanted(topic, self._options.max_in_flight or 1):
            messages = await consumer.take(wanted)
            if not messages:
                return  # closed
            try:
                await output.show(topic, messages)
            except OSError:
                for message in messages:
                    message.requeue(0.0, backoff=False)
                raise
            # Do not ask for messages that will not be shown: they would be given back, and come out of order.
            left = output.wanted(topic, self._options.max_in_flight)
            if left < self._options.max_in_flight:
                consumer.set_max_in_flight(left)
            for message in messages:
                message.finish()

    async def _close(self) -> None:
        """CLS everywhere; messages that were not written are requeued."""
        if not self._consumers:
            return
        closing = [asyncio.create_task(each.close(_LAST_ANSWERS)) for each in self._consumers]
        self._consumers = []
        _, late = await asyncio.wait(closing, timeout=_END)
        for task in late:  # an nsqd that does not answer: the end of the process is the end of its connection
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
