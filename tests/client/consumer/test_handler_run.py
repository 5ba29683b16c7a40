"""`Consumer.run`: handlers that return, fail, take long, or answer later."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.client import Consumer, Exponential, Message, Producer
from tests.client.consumer.consuming import channel, config, finished, run
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


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


async def test_concurrency_alone_is_enough_to_run_so_many_at_once(nsqd: Nsqd, producer: Producer) -> None:
    await producer.publish_many("t", [b"x"] * 10)
    all_at_once = asyncio.Barrier(10)
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        await all_at_once.wait()
        done.set()

    async with Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
        await run(consumer, handle, done, concurrency=10)
        assert consumer.stats().max_in_flight == 10


async def test_a_max_in_flight_that_is_said_holds_and_a_warning_tells(
    nsqd: Nsqd, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    await producer.publish("t", b"x")
    done = asyncio.Event()
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=config(2)) as consumer:
        await run(consumer, lambda message: done.set(), done, concurrency=10)
        assert consumer.stats().max_in_flight == 2
    assert "max_in_flight is 2, so no more than 2 of 10 workers" in caplog.text


async def test_a_pause_outlasts_the_start_of_a_run(nsqd: Nsqd) -> None:
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
        consumer.pause()
        running = asyncio.create_task(consumer.run(lambda message: None, concurrency=3))
        await asyncio.sleep(0)  # the run begins
        await asyncio.sleep(0)
        assert consumer.stats().max_in_flight == 0
        consumer.resume()
        assert consumer.stats().max_in_flight == 3
        await consumer.close()
        await running
