"""Conversations that every NSQ client has the same way: what it sends, in order, to a scripted nsqd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nsquark.client import Config, Consumer, Exponential, Message, Requeue
from nsquark.client.config import Reconnect
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")

QUICK = Exponential(multiplier=0.01)


def config(max_in_flight: int, **more: object) -> Config:
    reconnect = Reconnect(first=0.01, cap=0.01)
    return Config(max_in_flight=max_in_flight, backoff=QUICK, reconnect=reconnect, **more)  # type: ignore[arg-type]


class Failed(Exception):
    """What a handler raises for a message that is to fail."""


async def handle(message: Message) -> None:
    """A message succeeds, fails, or is requeued without backoff, as it says."""
    if message.body == b"B":
        raise Failed
    if message.body == b"N":
        raise Requeue(backoff=False)


async def converse(
    nsqd: ScriptedNsqd,
    conversation: Callable[[Consumer], Awaitable[None]],
    settings: Config,
    handler: Callable[[Message], Awaitable[None]] = handle,
    **options: object,
) -> None:
    """Run a consumer with a handler for as long as the conversation takes."""
    consumer = Consumer("t", "ch", nsqd=nsqd.address, config=settings, **options)  # type: ignore[arg-type]
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        try:
            await conversation(consumer)
        finally:
            await consumer.close(0)
            await running


async def exchange(peer: Peer, script: list[tuple[bytes, list[str]]]) -> None:
    """Push each message, and expect what the client answers to it."""
    for number, (body, answers) in enumerate(script):
        peer.push(number, body)
        await peer.expect(*answers)


async def test_backoff() -> None:
    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            await exchange(
                peer,
                [
                    (b"G", ["FIN"]),
                    (b"G", ["FIN"]),
                    (b"G", ["FIN"]),
                    (b"B", ["RDY 0", "REQ", "RDY 1"]),
                    (b"B", ["RDY 0", "REQ", "RDY 1"]),
                    (b"G", ["RDY 0", "FIN", "RDY 1"]),
                    (b"G", ["RDY 5", "FIN"]),
                ],
            )
            assert consumer.stats().backoff_level == 0

        await converse(nsqd, conversation, config(5))


async def test_a_neutral_requeue_keeps_the_level() -> None:
    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            await exchange(
                peer,
                [(b"B", ["RDY 0", "REQ", "RDY 1"]), (b"N", ["RDY 0", "REQ", "RDY 1"]), (b"G", ["FIN"])],
            )

        await converse(nsqd, conversation, config(1))


async def test_the_level_outlives_a_lost_connection() -> None:
    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            await exchange(
                peer,
                [
                    (b"G", ["FIN"]),
                    (b"B", ["RDY 0", "REQ", "RDY 1"]),
                    (b"B", ["RDY 0", "REQ", "RDY 1"]),
                    (b"G", ["RDY 0", "FIN", "RDY 1"]),
                ],
            )
            peer.drop()
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            await exchange(peer, [(b"G", ["RDY 5", "FIN"]), (b"G", ["FIN"])])

        await converse(nsqd, conversation, config(5))


async def test_pause_and_resume() -> None:
    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            await exchange(peer, [(b"G", ["FIN"])])
            consumer.set_max_in_flight(0)
            await peer.expect("RDY 0")
            consumer.set_max_in_flight(5)
            await peer.expect("RDY 5")

        await converse(nsqd, conversation, config(5))


async def test_giving_up_after_five_attempts() -> None:
    given_up: list[bytes] = []

    async def on_give_up(message: Message) -> None:
        given_up.append(message.body)

    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            for attempts in range(1, 6):
                peer.push(7, b"B", attempts)
                await peer.expect("RDY 0", f"REQ {7:016x} 0", "RDY 1")
            assert not given_up
            peer.push(7, b"B", 6)
            await peer.expect("RDY 0", "FIN")
            assert given_up == [b"B"]
            assert consumer.stats().gave_up == 1

        await converse(nsqd, conversation, config(1, default_requeue_delay=0), on_give_up=on_give_up)


async def test_stopping_with_three_in_flight() -> None:
    go_on = asyncio.Event()

    async def slow(message: Message) -> None:
        await go_on.wait()

    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            for number in range(3):
                peer.push(number)
            await until(lambda: consumer.stats().received == 3)
            closing = asyncio.create_task(consumer.close())
            await peer.expect("CLS")
            go_on.set()
            await peer.expect("FIN", "FIN", "FIN")
            await peer.closed.wait()
            assert (await closing).finished == 3
            assert peer.commands[-4:] == ["CLS", *(f"FIN {number:016x}" for number in range(3))]

        await converse(nsqd, conversation, config(5), slow)


async def test_two_connections_share_and_never_have_more_than_the_whole() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as other:
        consumer = Consumer("t", "ch", nsqd=one.address, config=config(10))
        async with consumer:
            first = await one.peer()
            await first.expect("RDY 10")
            consumer.add_nsqd(other.address)
            second = await other.peer()
            await first.expect("RDY 5")
            await second.expect("RDY 5")


@pytest.mark.parametrize(("attempts", "delay"), [(1, 90_000), (3, 270_000), (5, 450_000), (12, 900_000)])
async def test_the_requeue_delay_grows_with_the_attempts(attempts: int, delay: int) -> None:
    async with ScriptedNsqd() as nsqd:

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            peer.push(1, b"B", attempts)
            await peer.expect("RDY 0", f"REQ {1:016x} {delay}")

        await converse(nsqd, conversation, config(1, max_attempts=0))


async def test_identify_says_what_nsq_clients_say() -> None:
    async with ScriptedNsqd() as nsqd:
        settings = config(1, client_id="me", hostname="me.example", msg_timeout=5.0, sample_rate=7)

        async def conversation(consumer: Consumer) -> None:
            peer = await nsqd.peer()
            expected = {
                "client_id": "me",
                "hostname": "me.example",
                "short_id": "me",
                "long_id": "me.example",
                "tls_v1": False,
                "deflate": False,
                "deflate_level": 6,
                "snappy": False,
                "feature_negotiation": True,
                "heartbeat_interval": 30000,
                "sample_rate": 7,
                "output_buffer_size": 16384,
                "output_buffer_timeout": 250,
                "msg_timeout": 5000,
            }
            assert peer.identify.pop("user_agent").startswith("nsquark/")
            assert peer.identify == expected

        await converse(nsqd, conversation, settings)
