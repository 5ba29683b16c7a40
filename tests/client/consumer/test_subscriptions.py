"""What the connections of a consumer share, when one is lost."""

from __future__ import annotations

import pytest

from nsquark.client import Consumer
from nsquark.client.events import (
    Connected,
    Disconnected,
    Event,
)
from tests.client.consumer.consuming import config
from tests.client.scripted import ScriptedNsqd
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_a_lost_connection_makes_its_messages_unanswerable_and_comes_back() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=config(5), on_event=events.append)
        async with consumer:
            peer = await nsqd.peer()
            peer.push(1)
            peer.push(2)
            message = await anext(consumer)
            await until(lambda: consumer.stats().queued == 1)
            peer.drop()
            peer = await nsqd.peer()
            assert message.connection_lost
            assert message.is_expired
            assert not message.finish()
            assert not message.touch()
            await peer.expect("RDY 5")
            peer.push(3)
            assert (await anext(consumer)).id == b"%016x" % 3  # the second is gone with its connection
            stats = consumer.stats()
            assert (stats.expired_answers, stats.in_flight, stats.queued) == (1, 1, 0)
            assert [type(event) for event in events] == [Connected, Disconnected, Connected]
            await consumer.close(0)
