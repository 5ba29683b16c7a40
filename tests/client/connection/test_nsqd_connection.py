"""A connection: heartbeats, noise and silence."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Consumer
from tests.client.consumer.consuming import config
from tests.client.scripted import RESPONSE, ScriptedNsqd, frame

pytestmark = pytest.mark.usefixtures("tidy")


async def test_heartbeats_are_answered_while_all_handlers_are_blocked() -> None:
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=config(2))
        async with consumer:
            blocked = asyncio.create_task(consumer.run(lambda message: asyncio.Event().wait()))
            peer = await nsqd.peer()
            await peer.expect("RDY 2")
            for number in range(4):
                peer.push(number)
            peer.send(frame(RESPONSE, b"_heartbeat_"))
            await peer.expect("NOP")
            # and while it drains
            closing = asyncio.create_task(consumer.close())
            await peer.expect("CLS")
            peer.send(frame(RESPONSE, b"_heartbeat_"))
            await peer.expect("NOP")
            again = await consumer.close()  # the second time is at once
            assert await closing == again
            assert again.requeued == 4
            await blocked


async def test_noise_ends_the_connection() -> None:
    async with ScriptedNsqd() as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=config()):
        peer = await nsqd.peer()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await nsqd.peer()


async def test_silence_ends_the_connection() -> None:
    settings = config(read_timeout=1.0, heartbeat_interval=1.0)
    async with ScriptedNsqd() as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=settings):
        await nsqd.peer()
        await nsqd.peer()
