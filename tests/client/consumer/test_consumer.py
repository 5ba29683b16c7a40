"""Consuming: from a real nsqd where it can be had, from a scripted one where it must misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsquark.client import Config, Consumer, Producer
from nsquark.errors import UsageError
from tests.client.consumer.consuming import config
from tests.client.scripted import ScriptedNsqd
from tests.daemon import PATIENCE, Nsqd

pytestmark = pytest.mark.usefixtures("tidy")


async def test_batches_are_full_or_as_full_as_can_be(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"%d" % n for n in range(25)])
    sizes = []
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(100)) as consumer:
        async for batch in consumer.batches(10, max_wait=0.2):
            sizes.append(len(batch))
            for message in batch:
                message.finish()
            if sum(sizes) == 25:
                break
    assert sum(sizes) == 25
    assert max(sizes) == 10


async def test_a_batch_does_not_wait_for_what_cannot_come(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 20)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(5)) as consumer:
        batches = consumer.batches(100, max_wait=3600)
        async with asyncio.timeout(PATIENCE):
            batch = await anext(batches)
        assert 4 <= len(batch) <= 5
        assert consumer.is_starved
        for message in batch:
            message.finish()
        await batches.aclose()


async def test_a_batch_waits_no_longer_than_it_may(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(100)) as consumer:
        async for batch in consumer.batches(10, max_wait=0.05):
            assert len(batch) == 1
            batch[0].finish()
            break


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": "bad topic"}, "topic 'bad topic'"),
        ({"channel": ""}, "channel ''"),
        ({"nsqd": ()}, "no nsqd"),
        ({"nsqd": "localhost"}, "missing port"),
        ({"nsqd": "::1:4150"}, "too many colons"),
        ({"lookupd": "localhost"}, "port"),
        ({"config": Config(heartbeat_interval=-1)}, "heartbeat_interval"),
    ],
)
def test_a_mistake_is_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Consumer(**{"topic": "t", "channel": "ch", "nsqd": "127.0.0.1:4150", **arguments})


async def test_a_consumer_starts_once_and_before_it_is_used() -> None:
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address)
        with pytest.raises(UsageError, match="not started"):
            await anext(consumer)
        async with consumer:
            with pytest.raises(UsageError, match="starts once"):
                await consumer.start()


def test_a_consumer_is_made_without_an_event_loop() -> None:
    Consumer("t", "ch", nsqd=["127.0.0.1:4150", "[::1]:4150"], lookupd="http://lookup:4161/")
