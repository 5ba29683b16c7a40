"""Several nsqds: which one gets a message, and which is next."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from nsquark.client.events import ConnectionRefused, Event
from nsquark.errors import ConnectFailed, PubFailed, PublishTimeout
from tests.client.producer.publishing import bodies, producer_to
from tests.client.scripted import Peer, ScriptedNsqd

pytestmark = pytest.mark.usefixtures("tidy")


async def test_a_server_that_failed_is_tried_again_if_asked_to() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        failures = 2

        def fail(peer: Peer) -> None:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                peer.fail(b"E_PUB_FAILED PUB failed disk full")
                peer.writer.close()
            else:
                peer.respond()

        nsqd.handlers["PUB"] = fail
        with pytest.raises(PubFailed):
            await producer.publish("t", b"x")
        await producer.publish("t", b"x", retries=1)


async def test_all_get_it_in_order_and_the_first_failure_ends_it() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedNsqd() as three:
        async with producer_to(one, two, three, mode="all") as producer:
            await producer.publish("t", b"a")
            two.handlers["PUB"] = lambda peer: peer.fail(b"E_PUB_FAILED PUB no")
            with pytest.raises(PubFailed):
                await producer.publish("t", b"b")
        assert (bodies(one), bodies(two), bodies(three)) == ([b"a", b"b"], [b"a", b"b"], [b"a"])


@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
async def test_in_turn(mode: Any) -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        async with producer_to(one, two, mode=mode) as producer:
            for number in range(6):
                await producer.publish("t", b"%d" % number)
        assert {len(bodies(one)), len(bodies(two))} == {3}


@pytest.mark.parametrize("mode", ["hostpool", "round-robin", "epsilon-greedy", "random"])
async def test_what_could_not_be_sent_goes_to_another(mode: Any) -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as gone:
        pass
    async with ScriptedNsqd() as nsqd, producer_to(gone, nsqd, mode=mode, on_event=events.append) as producer:
        for number in range(10):
            await producer.publish("t", b"%d" % number)
        assert len(bodies(nsqd)) == 10
        await producer.ping()
    assert mode == "random" or any(isinstance(event, ConnectionRefused) for event in events)


async def test_mpub_goes_to_one_of_several() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        async with producer_to(one, two) as producer:
            await producer.publish_many("t", [b"a", b"b"])
        packed = struct.pack(">I", 2) + b"".join(struct.pack(">I", 1) + body for body in (b"a", b"b"))
        assert [body for nsqd in (one, two) for peer in nsqd.peers for body in peer.bodies[1:]] == [packed]


@pytest.mark.parametrize("nsqds", [1, 2])
async def test_what_could_not_be_sent_in_time_says_why(nsqds: int) -> None:
    gone = []
    for _ in range(nsqds):
        async with ScriptedNsqd() as nsqd:
            gone.append(nsqd)
    async with producer_to(*gone) as producer:
        with pytest.raises(PublishTimeout, match=r"in time: .*Connection refused") as caught:
            await producer.publish("t", b"x", timeout=1.0)
    assert not caught.value.sent
    assert all(nsqd.address in str(caught.value) for nsqd in gone)
    cause = caught.value.__cause__
    assert isinstance(cause, ConnectFailed)
    assert isinstance(cause.__cause__, ConnectionRefusedError)
