"""Commands on their way: answers in order, and what was sent when a connection ends."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Config, Producer
from nsquark.client.config import Reconnect
from nsquark.errors import (
    BadTopic,
    OutcomeUnknown,
    PendingFull,
    PublishTimeout,
)
from tests.client.producer.publishing import producer_to, silent
from tests.client.scripted import RESPONSE, Peer, ScriptedNsqd, frame
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_what_nsqd_refuses_fails_alone_and_the_rest_is_unknown() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        first, second, third = (producer.publish_nowait("t", body) for body in (b"1", b"2", b"3"))
        peer = await nsqd.peer(subscribed=False)
        await until(lambda: len(peer.commands) >= 4)
        peer.respond()
        peer.fail(b"E_BAD_TOPIC PUB topic name is not valid")
        peer.writer.close()
        await first
        with pytest.raises(BadTopic):
            await second
        with pytest.raises(OutcomeUnknown):
            await third


async def test_too_many_unanswered_are_waited_for_or_refused() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd, max_pending=3) as producer:
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        pending = [producer.publish_nowait("t", b"x") for _ in range(3)]
        with pytest.raises(PendingFull):
            producer.publish_nowait("t", b"x")
        with pytest.raises(PublishTimeout) as caught:
            await producer.publish("t", b"x", timeout=0.05)
        assert not caught.value.sent
        waiting = asyncio.create_task(producer.publish("t", b"fourth"))
        peer = await nsqd.peer(subscribed=False)
        await until(lambda: len(peer.commands) >= 4)
        peer.respond()
        await pending[0]
        await until(lambda: peer.bodies[-1] == b"fourth")
        for _ in range(3):
            peer.respond()
        await waiting


async def test_a_server_that_takes_nothing_is_not_sent_more() -> None:
    config = Config(write_timeout=60, reconnect=Reconnect(first=0.01, cap=0.05))
    async with ScriptedNsqd() as nsqd:
        go_on = asyncio.Event()
        nsqd.handlers["PUB"] = lambda peer: go_on.wait()
        producer = Producer(nsqd.address, config=config)
        futures = [asyncio.create_task(producer.publish("t", b"x" * (1 << 20))) for _ in range(60)]
        publisher = producer._publishers.only
        assert publisher is not None
        await until(
            lambda: publisher.connection is not None and publisher.connection.write_resumed is not None
        )
        assert publisher.connection is not None
        assert publisher.connection.unanswered < 60
        nsqd.handlers["PUB"] = lambda peer: peer.respond()
        go_on.set()
        (await nsqd.peer(subscribed=False)).respond()
        await asyncio.gather(*futures)
        await producer.close()


async def test_a_connection_cut_between_publish_and_answer_leaves_the_outcome_unknown() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        nsqd.handlers["PUB"] = lambda peer: peer.drop()
        with pytest.raises(OutcomeUnknown):
            await producer.publish("t", b"x")
        del nsqd.handlers["PUB"]
        await producer.publish("t", b"x")


async def test_a_cancelled_publish_keeps_its_place() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        peer = await nsqd.peer(subscribed=False)
        first = asyncio.create_task(producer.publish("t", b"1"))
        second = asyncio.create_task(producer.publish("t", b"2"))
        await until(lambda: len(peer.commands) >= 4)
        first.cancel()
        peer.respond()
        await until(lambda: first.cancelled())
        peer.fail(b"E_BAD_TOPIC PUB no")
        with pytest.raises(BadTopic):
            await second


async def test_heartbeats_and_late_errors_take_nobodys_answer() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:

        def chatter(peer: Peer) -> None:
            peer.send(frame(RESPONSE, b"_heartbeat_"))
            peer.fail(b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight")
            peer.respond()

        nsqd.handlers["PUB"] = chatter
        await producer.publish("t", b"x")
        await producer.publish("t", b"y")
        await until(lambda: nsqd.peers[0].commands.count("NOP") == 2)
