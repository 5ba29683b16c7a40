"""Closing a consumer that has messages."""

from __future__ import annotations

import pytest

from nsquark.client import Consumer, Producer
from tests.client.consumer.consuming import config, depth_is
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_what_is_queued_when_iterating_stops_goes_back(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 10)
    consumer = Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config())
    async with consumer:
        async for message in consumer:
            message.finish()
            await until(lambda: consumer.stats().queued == 9)
            break
    assert (await consumer.close()).requeued == 9
    await until(lambda: depth_is(nsqd, 9))
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)


async def test_an_exception_out_of_the_block_closes_at_once_and_gives_back(
    nsqd: Nsqd, producer: Producer
) -> None:
    await producer.publish_many("t", [b"x"] * 10)

    async def fail() -> None:
        async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await until(lambda: depth_is(nsqd, 10))
