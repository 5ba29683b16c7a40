"""Consuming: from a real nsqd where it can be had, from a scripted one where it must misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsquark.client import Config, Consumer, Discard, Exponential, Message, Producer, Requeue
from nsquark.client.config import Reconnect
from nsquark.client.events import (
    AnswerExpired,
    BackoffChanged,
    Connected,
    ConnectionRefused,
    Disconnected,
    Event,
    GaveUp,
)
from nsquark.errors import BadTopic, ConnectFailed, UsageError
from tests.client.scripted import RESPONSE, Peer, ScriptedNsqd, frame
from tests.daemon import PATIENCE, Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")

QUICK = Reconnect(first=0.01, cap=0.05)


def config(max_in_flight: int = 10, **more: Any) -> Config:
    more = {"backoff": None, "reconnect": QUICK, "default_requeue_delay": 0.0, **more}
    return Config(max_in_flight=max_in_flight, **more)


@pytest.fixture
async def producer(nsqd: Nsqd) -> AsyncIterator[Producer]:
    async with Producer(nsqd.tcp_address) as producer:
        yield producer


async def channel(nsqd: Nsqd) -> dict[str, Any]:
    """What nsqd says of channel ch of topic t."""
    _, answer = await nsqd.http("GET", "/stats?format=json&topic=t&channel=ch")
    found: dict[str, Any] = json.loads(answer)["topics"][0]["channels"][0]
    return found


# ---- iterating


async def test_messages_come_with_all_they_have(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b'{"a": 1}')
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        message = await anext(consumer)
        assert (message.body, message.attempts, len(message.id)) == (b'{"a": 1}', 1, 16)
        assert (message.topic, message.channel, message.nsqd_address) == ("t", "ch", nsqd.tcp_address)
        assert message.json() == {"a": 1}
        assert 0 <= message.age < 60
        assert 0 < message.time_left() <= 60
        assert 60 < message.time_left(hard=True) <= 900
        assert not message.has_responded
        assert not message.is_expired
        assert message.finish()
        assert message.has_responded
        with pytest.raises(UsageError, match="answered before"):
            message.finish()
        with pytest.raises(UsageError, match="answered before"):
            message.requeue()
        assert not message.touch()
        await until(lambda: finished(nsqd, 1))


async def finished(nsqd: Nsqd, count: int) -> bool:
    stats = await channel(nsqd)
    return bool(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"] == 0 and count >= 0)


async def test_two_tasks_share_the_messages(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"%d" % n for n in range(1000)])
    got: list[bytes] = []

    async def consume(consumer: Consumer) -> None:
        async for message in consumer:
            async with message:
                got.append(message.body)
                await asyncio.sleep(0)
            if len(got) == 1000:
                asyncio.get_running_loop().call_soon(closing.set)

    closing = asyncio.Event()
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(50)) as consumer:
        tasks = [asyncio.create_task(consume(consumer)) for _ in range(2)]
        await closing.wait()
        await consumer.close()
        await asyncio.gather(*tasks)
        assert sorted(map(int, got)) == list(range(1000))
        assert consumer.stats().most_in_flight <= 50


async def test_leaving_the_block_of_a_message_answers_it(nsqd: Nsqd, producer: Producer) -> None:
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        await producer.publish("t", b"x")
        with pytest.raises(ZeroDivisionError):
            async with await anext(consumer):
                raise ZeroDivisionError
        async with await anext(consumer) as message:
            assert message.attempts == 2
            raise Requeue(0.0)
        with await anext(consumer) as message:
            assert message.attempts == 3
            raise Discard
        await until(lambda: finished(nsqd, 1))
        stats = consumer.stats()
        assert (stats.received, stats.finished, stats.requeued, stats.discarded) == (3, 1, 2, 1)


async def test_a_message_may_be_answered_by_a_thread(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 20)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(20)) as consumer:
        messages = [await anext(consumer) for _ in range(20)]
        threads = [threading.Thread(target=message.finish) for message in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await until(lambda: consumer.stats().finished == 20)
        await until(lambda: finished(nsqd, 20))


async def test_what_is_queued_when_iterating_stops_goes_back(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 10)
    consumer = Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config())
    async with consumer:
        async for message in consumer:
            message.finish()
            await until(lambda: consumer.stats().queued == 9)
            break
    assert (await consumer.close()).requeued == 9
    await until(lambda: depth_is(nsqd, 9))
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)


async def depth_is(nsqd: Nsqd, depth: int) -> bool:
    stats = await channel(nsqd)
    return bool(stats["depth"] == depth and stats["in_flight_count"] == 0)


async def test_an_exception_out_of_the_block_closes_at_once_and_gives_back(
    nsqd: Nsqd, producer: Producer
) -> None:
    await producer.publish_many("t", [b"x"] * 10)

    async def fail() -> None:
        async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await until(lambda: depth_is(nsqd, 10))


async def test_a_message_that_is_let_go_warns_and_is_not_waited_for(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        with pytest.warns(ResourceWarning, match="let go unanswered"):
            await anext(consumer)
        async with asyncio.timeout(PATIENCE):
            drained = await consumer.close(3600)
    assert (drained.requeued, drained.abandoned) == (1, 1)
    await until(lambda: depth_is(nsqd, 1))


async def test_a_forgotten_message_does_not_take_a_place_for_ever(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    settings = config(1, msg_timeout=1.0)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings) as consumer:
        with pytest.warns(ResourceWarning):
            await anext(consumer)
        async with asyncio.timeout(PATIENCE), await anext(consumer) as message:
            assert message.attempts == 2
        await until(lambda: consumer.stats().in_flight == 0)


# ---- batches


async def test_batches_are_full_or_as_full_as_can_be(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"%d" % n for n in range(25)])
    sizes = []
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(100)) as consumer:
        async for batch in consumer.batches(10, max_wait=0.2):
            sizes.append(len(batch))
            for message in batch:
                message.finish()
            if sum(sizes) == 25:
                break
    assert sum(sizes) == 25
    assert max(sizes) == 10


async def test_a_batch_does_not_wait_for_what_cannot_come(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 20)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(5)) as consumer:
        batches = consumer.batches(100, max_wait=3600)
        async with asyncio.timeout(PATIENCE):
            batch = await anext(batches)
        assert 4 <= len(batch) <= 5
        assert consumer.is_starved
        for message in batch:
            message.finish()
        await batches.aclose()


async def test_a_batch_waits_no_longer_than_it_may(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(100)) as consumer:
        async for batch in consumer.batches(10, max_wait=0.05):
            assert len(batch) == 1
            batch[0].finish()
            break


# ---- handlers


async def run(consumer: Consumer, handler: Any, done: asyncio.Event, **options: Any) -> None:
    """Run the handler until the test says that it has seen enough."""
    running = asyncio.create_task(consumer.run(handler, **options))
    async with asyncio.timeout(PATIENCE):
        await done.wait()
        await consumer.close()
        await running


async def test_a_handler_runs_as_often_at_once_as_it_is_told(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 30)
    now = most = total = 0
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal now, most, total
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        total += 1
        if total == 30:
            done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(30)) as consumer:
        await run(consumer, handle, done, concurrency=4)
    assert most == 4
    await until(lambda: finished(nsqd, 30))


async def test_a_plain_function_may_handle(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 5)
    done = asyncio.Event()
    got = []

    def handle(message: Message) -> None:
        got.append(message.body)
        if len(got) == 5:
            done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        await run(consumer, handle, done)


async def test_a_failing_handler_gets_the_message_again(
    nsqd: Nsqd, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    await producer.publish("t", b"secret")
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.attempts < 3:
            raise ZeroDivisionError("oh")
        done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        await run(consumer, handle, done)
        assert consumer.stats().requeued == 2
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [repr(error) for error in errors] == ["ZeroDivisionError('oh')"] * 2
    assert "secret" not in caplog.text


async def test_a_handler_that_takes_too_long_has_failed(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.attempts == 1:
            await asyncio.Event().wait()
        done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        await run(consumer, handle, done, handler_timeout=0.05)
        assert consumer.stats().requeued == 1


async def test_a_long_handler_keeps_its_message_by_touching(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep(1.5)
        assert not message.is_expired
        done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(msg_timeout=1.0)) as consumer:
        await run(consumer, handle, done, touch_every=0.25)
        stats = consumer.stats()
        assert stats.touched >= 4
        assert (stats.received, stats.finished, stats.expired_answers) == (1, 1, 0)
    assert (await channel(nsqd))["timeout_count"] == 0


async def test_the_answer_can_be_given_later(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    kept: list[Message] = []
    got = asyncio.Event()

    async def handle(message: Message) -> None:
        message.disable_auto_response()
        kept.append(message)
        got.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config()) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await got.wait()
        await asyncio.sleep(0)
        assert not kept[0].has_responded
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        kept[0].finish()
        assert (await closing).finished == 1
        await running


async def test_cancelling_run_gives_back_without_backoff(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 3)
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    settings = config(backoff=Exponential())
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert consumer.stats().requeued == 1
        assert consumer.stats().backoff_level == 0


# ---- giving up


async def test_giving_up_calls_the_hook_and_finishes(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish("t", b"x")
    given_up: list[Message] = []
    events: list[Event] = []

    async def on_give_up(message: Message) -> None:
        await producer.publish("dead", message.body)
        given_up.append(message)

    consumer = Consumer(
        "t",
        "ch",
        nsqd=nsqd.tcp_address,
        config=config(max_attempts=2),
        on_give_up=on_give_up,
        on_event=events.append,
    )
    async with consumer:
        running = asyncio.create_task(consumer.run(lambda message: message.requeue(0.0)))
        await until(lambda: given_up)
        await until(lambda: finished(nsqd, 1))
        assert given_up[0].attempts == 3
        assert GaveUp(given_up[0].id, 3, nsqd.tcp_address) in events
        await consumer.close()
        await running


async def test_a_message_is_not_lost_when_the_hook_fails() -> None:
    async def on_give_up(message: Message) -> None:
        raise ZeroDivisionError

    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=config(1), on_give_up=on_give_up)
        async with consumer:
            running = asyncio.create_task(consumer.run(lambda message: None))
            peer = await nsqd.peer()
            await peer.expect("RDY 1")
            peer.push(1, attempts=6)
            await peer.expect("REQ")
            await consumer.close(0)
            await running


# ---- trouble


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


async def test_a_refused_answer_is_counted_and_changes_nothing() -> None:
    events: list[Event] = []
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address, config=config(5), on_event=events.append)
        async with consumer:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            peer.push(1)
            message = await anext(consumer)
            message.touch()
            await peer.expect("TOUCH")
            assert not message.is_expired
            peer.fail(b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % message.id)
            peer.fail(b"E_FIN_FAILED FIN 0000000000000009 failed ID not in flight")
            await until(lambda: consumer.stats().expired_answers == 2)
            assert message.is_expired
            assert not message.finish()  # sent all the same: it costs nothing
            await peer.expect("FIN")
            assert [type(event) for event in events] == [Connected, AnswerExpired, AnswerExpired]
            peer.push(2)
            assert (await anext(consumer)).finish()


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


async def test_noise_ends_the_connection() -> None:
    async with ScriptedNsqd() as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=config()):
        peer = await nsqd.peer()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await nsqd.peer()


async def test_silence_ends_the_connection() -> None:
    settings = config(read_timeout=0.2, heartbeat_interval=0.2)
    async with ScriptedNsqd() as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=settings):
        await nsqd.peer()
        await nsqd.peer()


async def test_rdy_is_never_more_than_the_server_takes() -> None:
    modest = ScriptedNsqd({"max_rdy_count": 7})
    async with modest as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=config(100)):
        await (await nsqd.peer()).expect("RDY 7")


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


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topic": "bad topic"}, "topic 'bad topic'"),
        ({"channel": ""}, "channel ''"),
        ({"nsqd": ()}, "no nsqd"),
        ({"nsqd": "localhost"}, "missing port"),
        ({"nsqd": "::1:4150"}, "too many colons"),
        ({"lookupd": "localhost"}, "port"),
        ({"config": Config(heartbeat_interval=-1)}, "heartbeat_interval"),
    ],
)
def test_a_mistake_is_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Consumer(**{"topic": "t", "channel": "ch", "nsqd": "127.0.0.1:4150", **arguments})


async def test_a_consumer_starts_once_and_before_it_is_used() -> None:
    async with ScriptedNsqd() as nsqd:
        consumer = Consumer("t", "ch", nsqd=nsqd.address)
        with pytest.raises(UsageError, match="not started"):
            await anext(consumer)
        async with consumer:
            with pytest.raises(UsageError, match="starts once"):
                await consumer.start()


def test_a_consumer_is_made_without_an_event_loop() -> None:
    Consumer("t", "ch", nsqd=["127.0.0.1:4150", "[::1]:4150"], lookupd="http://lookup:4161/")
