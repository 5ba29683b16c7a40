"""Consumers that leave, in every way in which a connection ends: what they had in flight goes to others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.consumer import Consumer
from nsquark.nsqd.core.topic import Topic
from tests.daemon import Client, Closed, Nsqd, until
from tests.nsqd.harness import Clock, Harness, Publisher, Reader

BODY = b"x" * 3000
COUNT = 3000
RDY = 2500


async def slow_consumer(nsqd: Nsqd) -> Client:
    """A subscribed connection whose kernel takes only a few KB: the rest waits at nsqd."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", nsqd.tcp_port))
    client = Client(*await asyncio.open_connection(sock=plain, limit=2048))
    client.send(b"  V2")
    await client.sub("t", "c")
    return client


async def channel_stats(nsqd: Nsqd) -> Any:
    _, answer = await nsqd.http("GET", "/stats?format=json&topic=t")
    return json.loads(answer)["topics"][0]["channels"][0]


async def stands_still(nsqd: Nsqd) -> bool:
    """Whether nsqd has sent what it could: the socket is full."""
    before = (await channel_stats(nsqd))["in_flight_count"]
    await asyncio.sleep(0.05)
    return bool(before) and before == (await channel_stats(nsqd))["in_flight_count"]


ENDS: dict[str, Callable[[Client], None]] = {
    "half-close": lambda client: client.half_close(),
    "fatal error": lambda client: client.send(b"BOGUS\n"),
    "a second SUB": lambda client: client.send(b"SUB t c\n"),
    "half a command": lambda client: (client.send(b"PUB t\n\0\0"), client.half_close())[0],
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_full_consumer_that_ends_and_reads_on_keeps_nothing(nsqd: Nsqd, end: str) -> None:
    async with await nsqd.connect() as publisher:
        for first in range(0, COUNT, 100):
            await publisher.mpub("t", [b"%06d" % number + BODY for number in range(first, first + 100)])
    leaving = await slow_consumer(nsqd)
    reading = leaving.writer.transport
    assert isinstance(reading, asyncio.Transport)
    reading.pause_reading()
    leaving.rdy(RDY)
    await until(lambda: stands_still(nsqd))
    ENDS[end](leaving)

    async def left() -> bool:
        return not (await channel_stats(nsqd))["clients"]

    await until(left)
    reading.resume_reading()
    with contextlib.suppress(Closed):
        while True:
            await leaving.message()
    leaving.close()
    stats = await channel_stats(nsqd)
    assert (stats["depth"], stats["in_flight_count"]) == (COUNT, 0)
    async with await nsqd.connect() as other:
        await other.sub("t", "c", RDY)
        got = set()
        while len(got) < COUNT:
            message = await other.message()
            got.add(message.body[:6])
            other.fin(message)
    assert not [line for line in nsqd.lines if "could not deliver" in line or "Traceback" in line]


WAYS_BACK: dict[str, Callable[[Channel, Consumer], object]] = {
    "its socket takes data": lambda channel, consumer: channel.has_room(consumer),
    "RDY": lambda channel, consumer: channel.set_ready(consumer, 10),
    "an answer": lambda channel, consumer: channel.release(consumer, 0),
    "FIN": lambda channel, consumer: channel.finish(consumer, 0, 1),
    "a late read": lambda channel, consumer: channel.finish_read(consumer, b"FIN 0123456789abcdef\n", 21),
    "an offer": lambda channel, consumer: channel.offer(consumer),
    "seek": lambda channel, consumer: channel.seek(0),
    "empty": lambda channel, consumer: channel.empty(),
    "commit": lambda channel, consumer: channel.commit(1),
}


@pytest.mark.parametrize("way", WAYS_BACK)
def test_no_way_leads_back_for_a_consumer_that_has_left(tmp_path: Path, way: str) -> None:
    harness = Harness(tmp_path, Clock())
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 1)
    topic.publish([b"one", b"two"], 0, Publisher())
    harness.turn.run()
    reader.consumer.writable = False
    channel.remove_consumer(reader.consumer)
    reader.consumer.writable, reader.consumer.ready_count = True, 10
    reader.take()
    WAYS_BACK[way](channel, reader.consumer)
    harness.turn.run()
    assert reader.take() == []
    assert not channel.ready
    assert channel.in_flight_count == 0
    topic.close()


def test_a_consumer_that_leaves_in_the_middle_of_its_sample_loses_nothing(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    channel = topic.channel("c")
    leaving, staying = Reader(sample_rate=100), Reader()
    channel.add_consumer(leaving.consumer)
    channel.set_ready(leaving.consumer, 10)

    def leave(frames: object) -> None:
        channel.remove_consumer(leaving.consumer)

    leaving.consumer.send = leave
    bodies = [b"%d" % number for number in range(5)]
    topic.publish(bodies, 0, Publisher())
    harness.turn.run()
    channel.add_consumer(staying.consumer)
    channel.set_ready(staying.consumer, 10)
    harness.turn.run()
    assert sorted(body for _, _, body in staying.take()) == bodies
    topic.close()
