"""RDY and backoff on a clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsquark.client import Config, Consumer, Exponential
from nsquark.client.backoff import Signal
from nsquark.client.consumer.flow_control import FlowControl
from nsquark.client.consumer.rdy import RdyShare
from nsquark.client.events import (
    BackoffChanged,
    Event,
)
from tests.client.consumer.consuming import config
from tests.client.scripted import ScriptedNsqd
from tests.daemon import until

pytestmark = pytest.mark.usefixtures("tidy")


async def test_backoff_is_reported() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd:
        settings = config(5, backoff=Exponential(multiplier=0.001))
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=settings, on_event=events.append)
        async with consumer:
            peer = await nsqd.peer()
            peer.push(1)
            (await anext(consumer)).requeue(0.0)
            peer.push(2)
            await peer.expect("RDY 5", "RDY 0", "REQ", "RDY 1")
            (await anext(consumer)).finish()
            await peer.expect("RDY 5", "FIN")
    assert [event for event in events if isinstance(event, BackoffChanged)] == [
        BackoffChanged(1, 0.002),
        BackoffChanged(0, 0.0),
    ]


class Flow:
    """A flow control, the RDYs that it has sent, and its events."""

    def __init__(self, **options: Any) -> None:
        self.rdy: list[int] = []
        self.events: list[Event] = []
        self.control = FlowControl(
            "t/ch", Config(**options), lambda share, rdy: self.rdy.append(rdy), self.events.append
        )
        self.share = RdyShare(2500, asyncio.get_running_loop().time())
        self.control.add(self.share)


async def test_a_failure_pauses_then_one_message_decides() -> None:
    flow = Flow(max_in_flight=10, backoff=Exponential(multiplier=0.001, cap=0.001))
    flow.control.signal(Signal.FAILURE)
    assert flow.rdy == [10, 0]
    # Within SETTLE of the lowered RDY nsqd may still send: the test message is asked for after that.
    await until(lambda: flow.rdy == [10, 0, 1])
    flow.control.signal(Signal.SUCCESS)
    await until(lambda: flow.rdy[-1] == 10)
    assert [event.level for event in flow.events if isinstance(event, BackoffChanged)] == [1, 0]
    flow.control.stop()


async def test_a_change_is_sent_and_after_stop_nothing_is() -> None:
    flow = Flow(max_in_flight=10)
    flow.control.change_max_in_flight(4)
    flow.control.change_max_in_flight(4)
    assert flow.rdy == [10, 4]
    flow.control.stop()
    flow.control.add(RdyShare(2500, 0.0))
    flow.control.signal(Signal.FAILURE)
    assert flow.rdy == [10, 4]
    assert not flow.events


async def test_a_retired_connection_gets_no_more() -> None:
    flow = Flow(max_in_flight=10)
    flow.control.retire(flow.share)
    flow.control.remove(flow.share)
    assert flow.rdy == [10, 0]
    flow.control.stop()
