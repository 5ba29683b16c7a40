"""Connecting to the nsqds of a consumer: unreachable, refusing, left."""

from __future__ import annotations

import pytest

from nsquark.client import Consumer
from nsquark.client.events import (
    ConnectionRefused,
    Event,
)
from nsquark.errors import BadTopic, ConnectFailed
from tests.client.consumer.consuming import config
from tests.client.scripted import Peer, ScriptedNsqd
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_nobody_there_is_tried_on_and_reported() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd:
        address = nsqd.address
    async with Consumer("t", "ch", nsqd=address, config=config(), on_event=events.append):
        await until(lambda: len(events) >= 3)
    for event in events:
        assert isinstance(event, ConnectionRefused)
        assert isinstance(event.error, ConnectFailed)
        assert event.retry_in is not None


async def test_fail_fast_says_so_at_once() -> None:
    async with ScriptedNsqd() as nsqd:
        address = nsqd.address
    with pytest.raises(ConnectFailed):
        await Consumer("t", "ch", nsqd=address, config=config(), fail_fast=True).start()


async def test_one_of_two_is_enough_for_fail_fast() -> None:
    async with ScriptedNsqd() as gone:
        pass
    async with ScriptedNsqd() as nsqd:
        addresses = [gone.address, nsqd.address]
        async with Consumer("t", "ch", nsqd=addresses, config=config(), fail_fast=True):
            await nsqd.peer()


async def test_a_refused_subscription_is_raised_by_fail_fast_and_else_tried_slowly() -> None:
    events: list[Event] = []

    def refuse(peer: Peer) -> None:
        peer.fail(b"E_BAD_TOPIC SUB topic name is not valid")
        peer.writer.close()

    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["SUB"] = refuse
        with pytest.raises(BadTopic):
            await Consumer("t", "ch", nsqd=nsqd.address, config=config(), fail_fast=True).start()
        async with Consumer("t", "ch", nsqd=nsqd.address, config=config(), on_event=events.append):
            await until(lambda: events)
        event = events[0]
        assert isinstance(event, ConnectionRefused)
        assert isinstance(event.error, BadTopic)
        assert event.retry_in is not None
        assert event.retry_in >= 30


async def test_an_nsqd_can_be_left_while_consuming() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as other:
        consumer = Consumer("t", "ch", nsqd=[one.address, other.address], config=config(4))
        async with consumer:
            first, second = await one.peer(), await other.peer()
            first.push(1)
            message = await anext(consumer)
            consumer.remove_nsqd(one.address)
            await first.until("CLS")
            assert not first.closed.is_set()
            message.finish()
            await first.expect("FIN")
            await first.closed.wait()
            await second.until("RDY 4")
