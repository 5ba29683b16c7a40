"""Giving up messages, with and without a hook."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Consumer, Message, Producer
from nsquark.client.events import (
    Event,
    GaveUp,
)
from tests.client.consumer.consuming import config, finished
from tests.client.scripted import ScriptedNsqd
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_giving_up_calls_the_hook_and_finishes(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    given_up: list[Message] = []
    events: list[Event] = []

    async def on_give_up(message: Message) -> None:
        await producer.publish("dead", message.body)
        given_up.append(message)

    consumer = Consumer(
        "t",
        "ch",
        nsqd=nsqd.tcp_address,
        config=config(max_attempts=2),
        on_give_up=on_give_up,
        on_event=events.append,
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(lambda message: message.requeue(0.0)))
        await until(lambda: given_up)
        await until(lambda: finished(nsqd, 1))
        assert given_up[0].attempts == 3
        assert GaveUp(given_up[0].id, 3, nsqd.tcp_address) in events
        await consumer.close()
        await running


async def test_a_message_is_not_lost_when_the_hook_fails() -> None:
    async def on_give_up(message: Message) -> None:
        raise ZeroDivisionError

    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=config(1), on_give_up=on_give_up)
        async with consumer:
            running = asyncio.create_task(consumer.run(lambda message: None))
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            peer.push(1, attempts=6)
            await peer.expect("REQ")
            await consumer.close(0)
            await running
