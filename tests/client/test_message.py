"""A message: what it has, and leaving its block."""

from __future__ import annotations

import pytest

from nsquark.client import Consumer, Discard, Producer, Requeue
from nsquark.errors import UsageError
from tests.client.consumer.consuming import config, finished
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")


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
