"""One nsqd of a producer: connecting, connecting again, deadlines."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Producer
from nsquark.client.events import Connected, Disconnected, Event
from nsquark.errors import (
    BadTopic,
    ConnectFailed,
    PublishTimeout,
)
from tests.client.producer.publishing import CONFIG, producer_to, silent
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_a_real_nsqd_that_dies_is_found_again(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address, config=CONFIG) as producer:
        await producer.publish("t", b"x")
        nsqd.kill()
        publishing = asyncio.create_task(producer.publish("t", b"y", retries=5, timeout=60))
        await asyncio.to_thread(nsqd.restart)
        await publishing


async def test_what_comes_right_after_a_refusal_waits_for_the_next_connection() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:

        def judge(peer: Peer) -> None:
            if peer.bodies[-1] == b"bad":
                peer.fail(b"E_BAD_TOPIC PUB topic name is not valid")
                peer.writer.close()
            else:
                peer.respond()

        nsqd.handlers["PUB"] = judge
        for _ in range(3):
            with pytest.raises(BadTopic):
                await producer.publish("t", b"bad")
            await producer.publish("t", b"good")
            with pytest.raises(BadTopic):
                await producer.publish_nowait("t", b"bad")
            await producer.publish_nowait("t", b"good")


async def test_without_a_connection_nothing_is_sent_in_time() -> None:
    async with ScriptedNsqd() as nsqd:
        pass
    async with producer_to(nsqd) as producer:
        with pytest.raises(PublishTimeout) as caught:
            await producer.publish("t", b"x", timeout=0.05)
        assert not caught.value.sent
        with pytest.raises(ConnectFailed):
            await producer.ping()


async def test_a_publish_waits_for_the_connection_to_come_back() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd, producer_to(nsqd, on_event=events.append) as producer:
        await producer.ping()
        (await nsqd.peer(subscribed=False)).drop()
        await until(lambda: len(events) >= 2)
        await producer.publish("t", b"x")
        assert [type(event) for event in events] == [Connected, Disconnected, Connected]


async def test_closing_ends_whoever_waits_for_a_connection() -> None:
    async with ScriptedNsqd() as nsqd:
        pass
    producer = producer_to(nsqd)
    waiting = asyncio.create_task(producer.publish("t", b"x", timeout=3600))
    await asyncio.sleep(0)
    await producer.close()
    with pytest.raises(ConnectFailed, match="closed"):
        await waiting


async def test_no_answer_in_time_is_unknown_and_a_late_one_is_nobodys() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        with pytest.raises(PublishTimeout) as caught:
            await producer.publish("t", b"late", timeout=0.05)
        assert caught.value.sent
        del nsqd.handlers["PUB"]
        peer = await nsqd.peer(subscribed=False)
        second = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: peer.bodies[-1] == b"x")
        await producer.ping()
        assert not second.done()  # the one answer so far was the late one's
        peer.respond()
        await second
