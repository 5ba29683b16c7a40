"""`nsquark tail`: messages as they come, or from the log; no other channel notices."""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence

import click

from nsquark.client import Consumer
from nsquark.client.events import ConnectionRefused, Disconnected, DiscoveryFailed, Event
from nsquark.errors import ConnectionLost

from ...log_place import EARLIEST, LATEST, Place
from ...log_reader import RUN_MESSAGES, LogMessage, LogReader, NoLog, TopicNotFound
from ..cluster.daemons import Daemon
from ..cluster.figures import add_up
from ..cluster.nsqds import Cluster
from ..failures import Failure, not_answering, on_one_line, say
from ..flags import quantities
from ..flags.options import PLACE, TOPIC, Command, connecting, json_option
from ..flags.settings import Settings
from ..messages.message_text import MessageText
from ..output import Output, while_read
from ..running import run

_IN_FLIGHT = 200
_RETRY = 1.0


@click.command("tail", cls=Command)
@click.argument("topic", type=TOPIC)
@click.option("--from", "start", type=PLACE, help="Begin there in the topic's log.")
@click.option("--to", "end", type=PLACE, help="End there in the log; without it, wait for more.")
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--pretty", is_flag=True, help="Indent bodies that are JSON.")
@json_option
@connecting
def command(
    topic: str,
    start: Place | None,
    end: Place | None,
    count: int | None,
    pretty: bool,
    as_json: bool,
    settings: Settings,
) -> None:
    """Print the messages of a TOPIC, a line each.

    Without --from and --to, what is published from now on. --from and --to take earliest, latest, how long
    ago (10m, 2d), a position, or a time (2026-11-01T08:00, 14:30, local unless it says otherwise). With
    --json a line also has the id, the time, the attempts and the nsqd.

    It reads the topic's log, so that no channel notices. Go's nsqd has no log: there it is a consumer, of an
    ephemeral channel, and can only tell what is published from now on.

    \b
    nsquark tail orders --from 10m | grep refund
    nsquark tail orders --from earliest --to latest --json > orders.jsonl
    """
    tail = Tail(topic, count, MessageText(as_json, pretty))
    if start is None and end is None:
        work = tail.live(Cluster(settings))
    else:
        work = tail.log(Cluster(settings), start or EARLIEST, end)
    run(while_read(work, tail.output), tail.told)


class Tail:
    """Prints messages and counts them."""

    def __init__(self, topic: str, count: int | None, text: MessageText) -> None:
        self.output = Output()
        self._topic = topic
        self._count = count
        self._text = text
        self._printed = 0
        self._connected = False

    def told(self) -> str:
        return f"interrupted: printed {quantities.messages(self._printed)} of topic {self._topic!r}"

    @property
    def _left(self) -> int | None:
        return None if self._count is None else self._count - self._printed

    # ---- what comes

    async def live(self, cluster: Cluster) -> None:
        """From the end of the logs on. Where there are none, an ephemeral channel is the way to do it."""
        settings = cluster.settings
        if settings.nsqd_http or settings.lookupd_http:
            try:
                await self.log(cluster, LATEST, None)
                return
            except NoLog:
                await self._check_topic(cluster)
        await self._consume(cluster)

    def _tell(self, event: Event) -> None:
        if self._connected:  # before, a failure is the end, and is told then
            _told(event)

    async def _check_topic(self, cluster: Cluster) -> None:
        """Refuse to create a topic by subscribing to it, and to take what waits for a first channel."""
        stats = add_up(await cluster.stats(await cluster.nsqds(self._topic), self._topic))
        if self._topic not in stats:
            raise Failure(f"there is no topic {self._topic!r}")
        topic = stats[self._topic]
        if topic.depth and not topic.channels:
            raise Failure(
                f"topic {self._topic!r} has no channel, and this one would take the"
                f" {quantities.messages(topic.depth)} that wait for its first one: create that before"
            )

    async def _consume(self, cluster: Cluster) -> None:
        settings = cluster.settings
        addresses = [] if settings.lookupd_http and not settings.nsqd_tcp else await cluster.tcp_addresses()
        consumer = Consumer(
            self._topic,
            f"tail_{secrets.token_hex(6)}#ephemeral",
            nsqd=addresses,
            lookupd=settings.lookupd_http,
            config=settings.client_config(max_in_flight=_IN_FLIGHT, max_attempts=0),
            fail_fast=True,
            on_event=self._tell,
        )
        try:
            await consumer.start()
            self._connected = True
        except ConnectionLost as error:
            raise not_answering(", ".join(addresses), error) from None
        try:
            while self._left != 0 and (batch := await consumer.take(self._left or _IN_FLIGHT)):
                lines = [self._text.of(message, message.nsqd_address) for message in batch]
                await self.output.write(b"".join(lines))
                self._printed += len(batch)
                for message in batch:
                    message.finish()
        finally:
            await consumer.close(0)

    # ---- what is in the log

    async def log(self, cluster: Cluster, start: Place, end: Place | None) -> None:
        spans = await self._spans(cluster, start, end)
        async for messages in _merged(
            [reader.runs(first, last, lost=_lost) for reader, first, last in spans]
        ):
            await self._print(messages[: self._left])
            if self._left == 0:
                return
        if end is not None:
            return
        tasks = [asyncio.create_task(self._follow(reader, last)) for reader, _, last in spans]
        try:
            # One that ends has printed enough, or has failed for good.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _spans(
        self, cluster: Cluster, start: Place, end: Place | None
    ) -> list[tuple[LogReader, int, int]]:
        """A reader for each nsqd that has the topic, with the positions to read: from, and up to."""
        nsqds = await cluster.nsqds(self._topic)
        for place in (start, end):
            if place is not None and place.position is not None and len(nsqds) > 1:
                raise Failure(f"position {place.position} belongs to one nsqd: name it with --nsqd-http")

        async def span(nsqd: Daemon) -> tuple[LogReader, int, int] | None:
            reader = nsqd.log_reader(self._topic)
            try:
                bounds = await reader.range()
                first = await reader.find(start)
                last = min(bounds.next, await reader.find(end)) if end is not None else bounds.next
            except TopicNotFound:
                return None
            except ConnectionLost as error:
                raise not_answering(nsqd.address, error) from None
            return reader, first, max(first, last)

        found = [each for _, each in await cluster.on_each(nsqds, span) if each is not None]
        if not found:
            raise Failure(f"there is no topic {self._topic!r}")
        return found

    async def _follow(self, reader: LogReader, position: int) -> None:
        """Print what comes behind a position, also after an nsqd was away, until there is enough."""
        away = False
        while True:
            try:
                async for run_of_messages in reader.runs(position, follow=True, lost=_lost):
                    if away:
                        say(f"nsqd {reader.address} is back")
                        away = False
                    await self._print(run_of_messages[: self._left])
                    position = run_of_messages[-1].position + 1
                    if self._left == 0:
                        return
            except ConnectionLost as error:
                if not away:
                    say(f"nsqd {reader.address} does not answer, trying again: {on_one_line(error)}")
                away = True
                await asyncio.sleep(_RETRY)

    async def _print(self, messages: Sequence[LogMessage]) -> None:
        await self.output.write(b"".join(self._text.of(each, str(each.source)) for each in messages))
        self._printed += len(messages)


async def _merged(sources: list[AsyncIterator[list[LogMessage]]]) -> AsyncIterator[list[LogMessage]]:
    """The messages of several logs by time, in runs; each log in its own order."""
    if len(sources) == 1:
        async for run_of_messages in sources[0]:
            yield run_of_messages
        return
    heap: list[tuple[int, int, deque[LogMessage]]] = []  # by the time of the first message, then by log
    for number, source in enumerate(sources):
        if (first := await anext(source, None)) is not None:
            heap.append((first[0].timestamp_ns, number, deque(first)))
    heapq.heapify(heap)
    merged: list[LogMessage] = []
    while heap:
        _, number, waiting = heap[0]
        merged.append(waiting.popleft())
        if not waiting and (following := await anext(sources[number], None)) is not None:
            waiting.extend(following)
        if waiting:
            heapq.heapreplace(heap, (waiting[0].timestamp_ns, number, waiting))
        else:
            heapq.heappop(heap)
        if len(merged) >= RUN_MESSAGES or not heap:
            yield merged
            merged = []


def _lost(start: int, end: int) -> None:
    say(f"the messages at positions {start} to {end - 1} are gone from the log")


def _told(event: Event) -> None:
    match event:
        case Disconnected(address=address, error=error) if error is not None:
            say(f"nsqd {address}: {on_one_line(error)}")
        case ConnectionRefused(address=address, error=error, retry_in=retry_in) if retry_in is not None:
            say(f"nsqd {address} does not answer, trying again: {on_one_line(error)}")
        case DiscoveryFailed(lookupd=lookupd, error=error):
            say(f"nsqlookupd {lookupd} does not answer: {on_one_line(error)}")
        case _:
            pass
