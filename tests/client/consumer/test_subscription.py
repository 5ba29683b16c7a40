"""The messages in flight at one nsqd: answers by threads, too late, or never."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nsquark.client import Consumer, Producer
from nsquark.client.events import (
    AnswerExpired,
    Connected,
    Event,
)
from tests.client.consumer.consuming import channel, config, depth_is, finished
from tests.client.scripted import ScriptedNsqd
from tests.daemon import PATIENCE, Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


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


async def test_rdy_is_never_more_than_the_server_takes() -> None:
    modest = ScriptedNsqd({"max_rdy_count": 7})
    async with modest as nsqd, Consumer("t", "ch", nsqd=nsqd.address, config=config(100)):
        await (await nsqd.peer()).expect("RDY 7")


async def test_a_fin_that_comes_too_late_is_not_finished_and_the_log_says_why(
    nsqd: Nsqd, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    await producer.publish("t", b"x")
    settings = config(1, msg_timeout=1.0)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings) as consumer:
        message = await anext(consumer)
        consumer.pause()  # so that nsqd does not deliver it to this very consumer again
        await until(lambda: timed_out(nsqd))
        message.finish()
        await until(lambda: consumer.stats().expired_answers)
        assert (consumer.stats().finished, consumer.stats().received) == (0, 1)
        consumer.resume()
        (await anext(consumer)).finish()
        assert consumer.stats().finished == 1
    assert "E_FIN_FAILED" in caplog.text
    assert "took longer than msg_timeout (1 s)" in caplog.text


async def timed_out(nsqd: Nsqd) -> bool:
    return bool((await channel(nsqd))["timeout_count"])
