"""Statistics pushed to a statsd daemon: NSQ's keys, in datagrams of whole lines, spread over the interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeAlias

from nsquark.http import slices
from nsquark.net.addresses import split_off_port
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic

from .memory import memory_stats
from .report import channel_latency, topic_latency

logger = logging.getLogger(__name__)

TIMEOUT = 1.0  # to find the daemon
REST = 1.0  # of each interval, in which nothing is sent

_by_name = attrgetter("name")

Told: TypeAlias = "dict[Topic | Channel | str, dict[str, int]]"


class Statsd:
    """Pushes every `--statsd-interval`, for the first time after one. `stop` ends it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lines = StatsdLines(broker)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        options, loop = self._broker.options, asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + options.statsd_interval, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await self._push()
            except OSError as error:
                logger.error("failed to push to statsd(%s) - %s", options.statsd_address, error)
            except Exception:
                logger.exception("failed to push to statsd(%s)", options.statsd_address)

    async def _push(self) -> None:
        options = self._broker.options
        logger.info("STATSD: pushing stats to %s", options.statsd_address)
        host, port = split_off_port(options.statsd_address)
        async with asyncio.timeout(TIMEOUT):
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(host, int(port))
            )
        try:
            lines = [line async for some in slices(self._lines.collect()) for line in some]
            packets = pack(lines, options.statsd_udp_packet_size)
            for packet in packets:
                transport.sendto(packet)
                await asyncio.sleep((options.statsd_interval - REST) / len(packets))
        finally:
            transport.close()


def pack(lines: Iterable[bytes], size: int) -> list[bytes]:
    """Datagrams of whole lines, `size` bytes at most; a line that is longer goes alone."""
    packets: list[bytes] = []
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > size:
            packets.append(packet)
            packet = b""
        packet += line
    return [*packets, packet] if packet else packets


class StatsdLines:
    """Remembers what was told last: counters are told as differences.

    By object and not by name, so that a topic or channel that was deleted and created again starts from 0.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._told: Told = {}

    def collect(self) -> Iterator[bytes]:
        options = self._broker.options
        before, self._told = self._told, {}
        for topic in sorted(self._broker.topics.values(), key=_by_name):
            if topic.ephemeral and options.statsd_exclude_ephemeral:
                continue
            yield from self._topic(topic, before)
            for channel in sorted(topic.channels.values(), key=_by_name):
                if not (channel.ephemeral and options.statsd_exclude_ephemeral):
                    yield from self._channel(channel, before)
        if options.statsd_mem_stats:
            yield from self._memory(before)

    def _topic(self, topic: Topic, before: Told) -> Iterator[bytes]:
        counters = {"message_count": topic.message_count, "message_bytes": topic.message_bytes}
        gauges = {
            "depth": topic.depth,
            "backend_depth": topic.backend_depth,
            **_latency_gauges(topic_latency(topic)),
        }
        prefix = f"topic.{topic.name}."
        grown = self._growth(topic, counters, before)
        yield from (self._line(prefix + name, value, "c") for name, value in grown.items())
        yield from (self._line(prefix + name, value, "g") for name, value in gauges.items())

    def _channel(self, channel: Channel, before: Told) -> Iterator[bytes]:
        grown = self._growth(
            channel,
            {
                "message_count": channel.message_count,
                "requeue_count": channel.requeue_count,
                "timeout_count": channel.timeout_count,
            },
            before,
        )
        told = {
            "message_count": grown["message_count"],
            "depth": channel.depth,
            "backend_depth": channel.backend_depth,
            "in_flight_count": channel.in_flight_count,
            "deferred_count": channel.deferred_count,
            "requeue_count": grown["requeue_count"],
            "timeout_count": grown["timeout_count"],
            "clients": len(channel.consumers),
            **_latency_gauges(channel_latency(channel)),
        }
        prefix = f"topic.{channel.topic.name}.channel.{channel.name}."
        for name, value in told.items():
            yield self._line(prefix + name, value, "c" if name in grown else "g")

    def _memory(self, before: Told) -> Iterator[bytes]:
        told = memory_stats()
        runs = told.pop("gc_total_runs")
        for name, value in told.items():
            yield self._line(f"mem.{name}", value, "g")
        yield self._line("mem.gc_runs", self._growth("mem", {"gc_runs": runs}, before)["gc_runs"], "c")

    def _growth(self, thing: Topic | Channel | str, counters: dict[str, int], before: Told) -> dict[str, int]:
        self._told[thing] = counters
        last = before.get(thing, {})
        return {name: value - last.get(name, 0) for name, value in counters.items()}

    def _line(self, key: str, value: int, kind: str) -> bytes:
        return f"{self._broker.options.statsd_prefix}{key}:{value}|{kind}\n".encode()


def _latency_gauges(latency: dict[str, Any]) -> dict[str, int]:
    return {
        f"e2e_processing_latency_{each['quantile'] * 100:.0f}": each["value"]
        for each in latency["percentiles"] or ()
    }
