"""SIGTERM: nsqd writes down what only it knows, and the next one goes on from there."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.daemon import PATIENCE, Client, Message, Nsqd

DELAY_MS = 3000
BOTH = pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])


async def received(client: Client, count: int) -> dict[bytes, Message]:
    messages = [await client.message() for _ in range(count)]
    return {message.body: message for message in messages}


@BOTH
async def test_what_was_in_flight_or_deferred_comes_again(nsqd: Nsqd, signum: signal.Signals) -> None:
    consumer, producer = await nsqd.connect(), await nsqd.connect()
    await consumer.sub("topic", "ch", rdy=100)
    await producer.mpub("topic", [b"held", b"finished", b"requeued", b"deferred", b"touched"])
    # Long enough for everything up to the stop, on a machine that has something else to do.
    due = {b"later": time.time() + DELAY_MS / 1000}
    await producer.dpub("topic", DELAY_MS, b"later")
    first = await received(consumer, 5)
    consumer.req(first[b"requeued"])
    again = await consumer.message()
    assert (again.id, again.attempts) == (first[b"requeued"].id, 2)
    consumer.fin(first[b"finished"])
    consumer.touch(first[b"touched"])
    due[b"deferred"] = time.time() + DELAY_MS / 1000
    consumer.req(first[b"deferred"], DELAY_MS)
    await consumer.caught_up()
    assert await asyncio.to_thread(nsqd.stop, signum) == 0
    nsqd.restart()

    attempts = {b"held": 2, b"requeued": 3, b"touched": 2, b"deferred": 2, b"later": 1}
    async with await nsqd.connect() as client:
        await client.sub("topic", "ch", rdy=100)
        for _ in range(len(attempts)):
            message = await client.message()
            assert message.attempts == attempts.pop(message.body)
            assert time.time() >= due.get(message.body, 0) - 0.002
            if message.body != b"later":
                before = first[message.body]
                assert (message.id, message.timestamp) == (before.id, before.timestamp)
        await client.caught_up()
        assert not client.messages
    consumer.close()
    producer.close()


async def test_attempts_grow_over_many_stops(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await client.pub("topic", b"body")
    for attempt in range(1, 6):
        client = await nsqd.connect()
        await client.sub("topic", "ch", rdy=1)
        message = await client.message()
        assert (message.body, message.attempts) == (b"body", attempt)
        assert nsqd.stop() == 0
        nsqd.restart()
        client.close()


async def test_what_was_published_and_finished_just_before_is_kept(nsqd: Nsqd) -> None:
    for number in range(3):
        async with await nsqd.connect() as client:
            await client.mpub("topic", [b"%d.%d" % (number, each) for each in range(1000)])
            await client.sub("topic", "ch", rdy=2500)
            messages = await received(client, 1000)
            assert {message.attempts for message in messages.values()} == {1}
            for message in messages.values():
                client.fin(message)
            await client.caught_up()
            assert await asyncio.to_thread(nsqd.stop) == 0
        nsqd.restart()


async def test_clients_at_work_do_not_delay_the_stop(nsqd: Nsqd) -> None:
    """Those that publish without end, and those that do not read what they are sent."""

    async def publish() -> None:
        client = await nsqd.connect()
        try:
            while True:
                await client.mpub("topic", [b"x" * 1000] * 100)
        except ConnectionError:
            client.close()

    publishing = [asyncio.create_task(publish()) for _ in range(3)]
    sleepers = [await nsqd.connect() for _ in range(20)]
    for sleeper in sleepers:
        sleeper.writer.transport.pause_reading()
        sleeper.send(b"SUB topic ch\nRDY 2500\n")
    async with await nsqd.connect() as client:
        await client.pub("topic", b"body")
        assert await asyncio.to_thread(nsqd.stop, within=PATIENCE) == 0
    await asyncio.gather(*publishing)
    for sleeper in sleepers:
        sleeper.abort()
    assert not [line for line in nsqd.lines if " ERROR: " in line]
