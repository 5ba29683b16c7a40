"""The queue of messages: alone, and shared by tasks."""

from __future__ import annotations

import asyncio

import pytest

from nsquark import kernel
from nsquark.client import Consumer, Message, Producer
from nsquark.client.consumer.message_queue import MessageQueue
from tests.client.consumer.consuming import config
from tests.client.scripted import message_frame
from tests.daemon import Nsqd


class FakeSubscription:
    """As much of a subscription as a message and its queue ask for."""

    def __init__(self) -> None:
        self.lost = False
        self.requeued: list[Message] = []

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        message.answered = True
        self.requeued.append(message)
        return True

    def forgotten(self, message: Message) -> bool:
        return False


def messages(subscription: FakeSubscription, count: int) -> list[Message]:
    data = b"".join(message_frame(b"%016x" % n, b"%d" % n) for n in range(count))
    return kernel.read_messages(data, 0, len(data), Message, subscription, 0.0)[1]


pytestmark = pytest.mark.usefixtures("tidy")


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


async def test_messages_are_taken_in_order_and_can_be_put_back() -> None:
    queue, (one, two, three) = MessageQueue(), messages(FakeSubscription(), 3)
    queue.put([one, two, three])
    assert [await queue.take(), queue.take_ready()] == [one, two]
    queue.put_back([one, two])
    assert list(queue.ready) == [one, two, three]


async def test_a_waiting_task_gets_the_message_and_a_cancelled_one_hands_it_on() -> None:
    queue, (message,) = MessageQueue(), messages(FakeSubscription(), 1)
    first, second = (asyncio.create_task(queue.take()) for _ in range(2))
    await asyncio.sleep(0)
    queue.put([message])
    first.cancel()
    assert await second is message
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_closing_queue_is_for_workers_and_an_ended_one_for_none() -> None:
    queue, (one, two) = MessageQueue(), messages(FakeSubscription(), 2)
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.close()
    assert await waiting is None
    queue.put([one, two])
    assert await queue.take() is None
    assert [await queue.take(worker=True) for _ in range(2)] == [one, two]
    worker = asyncio.create_task(queue.take(worker=True))
    await asyncio.sleep(0)
    queue.end()
    assert await worker is None


async def test_messages_of_a_lost_connection_are_dropped() -> None:
    queue, here, gone = MessageQueue(), FakeSubscription(), FakeSubscription()
    mine, theirs = messages(here, 2), messages(gone, 2)
    queue.put([mine[0], theirs[0], mine[1]])
    queue.drop(gone)  # type: ignore[arg-type]
    assert list(queue.ready) == mine
    assert theirs[0].answered
    gone.lost = True
    queue.put_back([theirs[1]])
    assert list(queue.ready) == mine
    queue.close()
    queue.put_back([])
    taken = queue.ready.popleft()
    queue.put_back([taken])
    assert here.requeued == [taken]


async def test_messages_may_come_between_a_cancellation_and_its_arrival() -> None:
    queue = MessageQueue()
    task = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    task.cancel()
    (message,) = messages(FakeSubscription(), 1)
    queue.put([message])
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await queue.take() is message
    message.answered = True
