"""Publishing: every way it can end has its type."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from nsquark.client import Config, Producer
from nsquark.client.config import Reconnect
from nsquark.client.events import Connected, ConnectionRefused, Disconnected, Event
from nsquark.errors import (
    BadTopic,
    ConnectFailed,
    OutcomeUnknown,
    PendingFull,
    PubFailed,
    PublishTimeout,
    UsageError,
)
from tests.client.scripted import RESPONSE, Peer, ScriptedNsqd, frame
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")

CONFIG = Config(reconnect=Reconnect(first=0.01, cap=0.05))


def producer_to(*nsqds: ScriptedNsqd, **options: Any) -> Producer:
    return Producer([nsqd.address for nsqd in nsqds], config=CONFIG, **options)


async def topic(nsqd: Nsqd, name: str) -> dict[str, Any]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={name}")
    found: dict[str, Any] = json.loads(answer)["topics"][0]
    return found


def silent(peer: Peer) -> None:
    """Answer nothing."""


# ---- the good way, with a real nsqd


async def test_what_is_published_is_stored_in_order(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"first")
        await producer.publish_many("t", [b"second", bytearray(b"third"), memoryview(b"fourth")])
        await asyncio.gather(*(producer.publish("t", b"%d" % n) for n in range(100)))
    client = await nsqd.connect()
    await client.sub("t", "ch", rdy=200)
    bodies = [(await client.message()).body for _ in range(104)]
    assert bodies == [b"first", b"second", b"third", b"fourth", *(b"%d" % n for n in range(100))]
    client.close()


async def test_a_delayed_message_comes_later(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"later", delay=3600)
    await nsqd.post("/channel/create?topic=t&channel=ch")
    stats = await topic(nsqd, "t")
    assert (stats["channels"][0]["deferred_count"], stats["channels"][0]["depth"]) == (1, 0)


async def test_publishing_without_waiting(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        first = producer.publish_nowait("t", b"before there is a connection")
        await first
        futures = [producer.publish_nowait("t", b"x") for _ in range(5000)]
        await producer.flush()
        assert all(future.done() and future.exception() is None for future in futures)
        assert (await topic(nsqd, "t"))["message_count"] == 5001


async def test_closing_waits_for_what_is_under_way(nsqd: Nsqd) -> None:
    producer = Producer(nsqd.tcp_address)
    await producer.ping()
    futures = [producer.publish_nowait("t", b"x") for _ in range(100)]
    await producer.close()
    assert all(future.exception() is None for future in futures)
    for call in (producer.publish("t", b"x"), producer.publish_many("t", [b"x"]), producer.ping()):
        with pytest.raises(UsageError, match="closed"):
            await call
    with pytest.raises(UsageError, match="closed"):
        producer.publish_nowait("t", b"x")
    await producer.close()


async def test_more_than_an_mpub_can_be_split(nsqd: Nsqd) -> None:
    bodies = [b"x" * 1_000_000] * 12
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(UsageError, match="at once"):
            await producer.publish_many("t", bodies)
        await producer.publish_many("t", bodies, split=True)
        assert (await topic(nsqd, "t"))["message_count"] == 12


async def test_an_idle_producer_answers_heartbeats(nsqd: Nsqd) -> None:
    events: list[Event] = []
    config = Config(heartbeat_interval=1.0)
    async with Producer(nsqd.tcp_address, config=config, on_event=events.append) as producer:
        await producer.publish("t", b"x")
        await asyncio.sleep(2.5)  # nsqd drops a client that is silent for two heartbeats
        await producer.publish("t", b"y")
    assert [type(event) for event in events] == [Connected, Disconnected]
    assert (await topic(nsqd, "t"))["message_count"] == 2


async def test_a_real_nsqd_that_dies_is_found_again(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address, config=CONFIG) as producer:
        await producer.publish("t", b"x")
        nsqd.kill()
        publishing = asyncio.create_task(producer.publish("t", b"y", retries=5, timeout=60))
        await asyncio.to_thread(nsqd.restart)
        await publishing


# ---- refused


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


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda p: p.publish("a b", b"x"), "topic 'a b'"),
        (lambda p: p.publish("t", b""), "0 bytes"),
        (lambda p: p.publish("t", b"x" * (1 << 20) + b"x"), "1048577 bytes"),
        (lambda p: p.publish("t", "text"), "bytes, not str"),
        (lambda p: p.publish("t", b"x", delay=-1.5), "delay"),
        (lambda p: p.publish("t", b"x", delay=3600.1), "delay"),
        (lambda p: p.publish_many("t", []), "no messages"),
        (lambda p: p.publish_many("t", [b"x", b""]), "body 1"),
        (lambda p: p.publish_many("t\n", [b"x"]), "topic"),
    ],
)
async def test_a_mistake_costs_no_byte(call: Any, reason: str) -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        with pytest.raises(UsageError, match=reason):
            await call(producer)
        assert not nsqd.peers


# ---- not sent


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


# ---- unknown


async def test_a_connection_cut_between_publish_and_answer_leaves_the_outcome_unknown() -> None:
    async with ScriptedNsqd() as nsqd, producer_to(nsqd) as producer:
        nsqd.handlers["PUB"] = lambda peer: peer.drop()
        with pytest.raises(OutcomeUnknown):
            await producer.publish("t", b"x")
        del nsqd.handlers["PUB"]
        await producer.publish("t", b"x")


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


async def test_closing_in_a_hurry_leaves_the_rest_unknown() -> None:
    async with ScriptedNsqd() as nsqd:
        producer = producer_to(nsqd)
        await producer.ping()
        nsqd.handlers["PUB"] = silent
        future = producer.publish_nowait("t", b"x")
        await asyncio.sleep(0)
        await producer.close(0.05)
        with pytest.raises(OutcomeUnknown):
            await future


# ---- several nsqds


def bodies(nsqd: ScriptedNsqd) -> list[bytes]:
    return [
        body
        for peer in nsqd.peers
        for command, body in zip(peer.commands, peer.bodies, strict=True)
        if command.startswith("PUB")
    ]


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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (((),), "no nsqd"),
        (("localhost:",), "host:port"),
        (("127.0.0.1:4150", {"mode": "best"}), "mode 'best'"),
        (("127.0.0.1:4150", {"max_pending": 0}), "max_pending"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[Any, ...], reason: str) -> None:
    address, *options = arguments
    with pytest.raises(UsageError, match=reason):
        Producer(address, **(options[0] if options else {}))
