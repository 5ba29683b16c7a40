"""Publishing: every way it can end has its type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsquark.client import Config, Producer
from nsquark.client.events import Connected, Disconnected, Event
from nsquark.errors import (
    OutcomeUnknown,
    UsageError,
)
from tests.client.producer.publishing import producer_to, silent, topic
from tests.client.scripted import ScriptedNsqd
from tests.daemon import Nsqd

pytestmark = pytest.mark.usefixtures("tidy")


async def test_what_is_published_is_stored_in_order(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"first")
        await producer.publish_many("t", [b"second", bytearray(b"third"), memoryview(b"fourth")])
        await asyncio.gather(*(producer.publish("t", b"%d" % n) for n in range(100)))
    client = await nsqd.connect()
    await client.sub("t", "ch", rdy=200)
    bodies = [(await client.message()).body for _ in range(104)]
    assert bodies == [b"first", b"second", b"third", b"fourth", *(b"%d" % n for n in range(100))]
    client.close()


async def test_a_delayed_message_comes_later(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"later", delay=3600)
    await nsqd.post("/channel/create?topic=t&channel=ch")
    stats = await topic(nsqd, "t")
    assert (stats["channels"][0]["deferred_count"], stats["channels"][0]["depth"]) == (1, 0)


async def test_publishing_without_waiting(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        first = producer.publish_nowait("t", b"before there is a connection")
        await first
        futures = [producer.publish_nowait("t", b"x") for _ in range(5000)]
        await producer.flush()
        assert all(future.done() and future.exception() is None for future in futures)
        assert (await topic(nsqd, "t"))["message_count"] == 5001


async def test_closing_waits_for_what_is_under_way(nsqd: Nsqd) -> None:
    producer = Producer(nsqd.tcp_address)
    await producer.ping()
    futures = [producer.publish_nowait("t", b"x") for _ in range(100)]
    await producer.close()
    assert all(future.exception() is None for future in futures)
    for call in (producer.publish("t", b"x"), producer.publish_many("t", [b"x"]), producer.ping()):
        with pytest.raises(UsageError, match="closed"):
            await call
    with pytest.raises(UsageError, match="closed"):
        producer.publish_nowait("t", b"x")
    await producer.close()


async def test_more_than_an_mpub_can_be_split(nsqd: Nsqd) -> None:
    bodies = [b"x" * 1_000_000] * 12
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(UsageError, match="at once"):
            await producer.publish_many("t", bodies)
        await producer.publish_many("t", bodies, split=True)
        assert (await topic(nsqd, "t"))["message_count"] == 12


async def test_an_idle_producer_answers_heartbeats(nsqd: Nsqd) -> None:
    events: list[Event] = []
    config = Config(heartbeat_interval=1.0)
    async with Producer(nsqd.tcp_address, config=config, on_event=events.append) as producer:
        await producer.publish("t", b"x")
        await asyncio.sleep(2.5)  # nsqd drops a client that is silent for two heartbeats
        await producer.publish("t", b"y")
    assert [type(event) for event in events] == [Connected, Disconnected]
    assert (await topic(nsqd, "t"))["message_count"] == 2


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda p: p.publish("a b", b"x"), "topic 'a b'"),
        (lambda p: p.publish("t", b""), "0 bytes"),
        (lambda p: p.publish("t", b"x" * 2001), "2001 bytes"),
        (lambda p: p.publish("t", "text"), "bytes, not str"),
        (lambda p: p.publish("t", b"x", delay=-1.5), "delay"),
        (lambda p: p.publish("t", b"x", delay=3600.1), "delay"),
        (lambda p: p.publish_many("t", []), "no messages"),
        (lambda p: p.publish_many("t", [b"x", b""]), "body 1"),
        (lambda p: p.publish_many("t\n", [b"x"]), "topic"),
    ],
)
async def test_a_mistake_costs_no_byte(call: Any, reason: str) -> None:
    async with ScriptedNsqd() as nsqd, Producer(nsqd.address, config=Config(max_msg_size=2000)) as producer:
        with pytest.raises(UsageError, match=reason):
            await call(producer)
        assert not nsqd.peers


async def test_closing_in_a_hurry_leaves_the_rest_unknown() -> None:
    async with ScriptedNsqd() as nsqd:
        producer = producer_to(nsqd)
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        future = producer.publish_nowait("t", b"x")
        await asyncio.sleep(0)
        await producer.close(0.05)
        with pytest.raises(OutcomeUnknown):
            await future


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (((),), "no nsqd"),
        (("localhost:",), "host:port"),
        (("127.0.0.1:4150", {"mode": "best"}), "mode 'best'"),
        (("127.0.0.1:4150", {"max_pending": 0}), "max_pending"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[Any, ...], reason: str) -> None:
    address, *options = arguments
    with pytest.raises(UsageError, match=reason):
        Producer(address, **(options[0] if options else {}))
