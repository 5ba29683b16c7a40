"""pynsq, NSQ's own Python client, as it comes from PyPI: its Writer and its Reader against our nsqd."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import nsq
import pytest

from tests.daemon import PATIENCE, Nsqd, until


@pytest.fixture
async def writer(nsqd: Nsqd) -> AsyncIterator[nsq.Writer]:
    writer = nsq.Writer([nsqd.tcp_address], reconnect_interval=3600.0)
    await until(lambda: writer.conns)
    yield writer
    for conn in list(writer.conns.values()):
        conn.close()


class Inbox:
    """A Reader whose messages wait to be looked at and answered."""

    def __init__(self, nsqd: Nsqd, topic: str, channel: str, **settings: object) -> None:
        self._messages: asyncio.Queue[nsq.Message] = asyncio.Queue()
        self.reader = nsq.Reader(
            topic=topic,
            channel=channel,
            message_handler=self._take,
            nsqd_tcp_addresses=[nsqd.tcp_address],
            max_in_flight=100,
            **settings,
        )

    def _take(self, message: nsq.Message) -> None:
        message.enable_async()
        self._messages.put_nowait(message)

    async def next(self) -> nsq.Message:
        async with asyncio.timeout(PATIENCE):
            return await self._messages.get()

    @property
    def empty(self) -> bool:
        return self._messages.empty()


@pytest.fixture
async def inbox(nsqd: Nsqd) -> AsyncIterator[Callable[..., Inbox]]:
    """`inbox(topic, channel)` begins to read; it ends with the test."""
    inboxes: list[Inbox] = []

    def open_inbox(topic: str, channel: str, **settings: object) -> Inbox:
        inboxes.append(Inbox(nsqd, topic, channel, **settings))
        return inboxes[-1]

    yield open_inbox
    for each in inboxes:
        each.reader.close()


async def answer_to(publish: Callable[..., object], *args: object) -> bytes | Exception:
    """What nsqd answers to a publish."""
    answer: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
    publish(*args, callback=lambda _conn, data: answer.set_result(data))
    async with asyncio.timeout(PATIENCE):
        return await answer


async def test_what_is_published_is_read(nsqd: Nsqd, writer: nsq.Writer, inbox: Callable[..., Inbox]) -> None:
    assert await answer_to(writer.pub, "greetings", b"hello") == b"OK"
    assert await answer_to(writer.mpub, "greetings", [b"one", b"two", b"three"]) == b"OK"
    box = inbox("greetings", "people")
    messages = [await box.next() for _ in range(4)]
    assert [message.body for message in messages] == [b"hello", b"one", b"two", b"three"]
    assert {message.attempts for message in messages} == {1}
    assert len({message.id for message in messages}) == 4
    for message in messages:
        message.finish()
    await until(lambda: finished(nsqd, 4))


async def finished(nsqd: Nsqd, count: int) -> bool:
    _, answer = await nsqd.http("GET", "/stats?format=json")
    return f'"finish_count":{count}'.encode() in answer and b'"in_flight_count":0' in answer


async def test_a_deferred_message_comes_when_it_is_due(
    writer: nsq.Writer, inbox: Callable[..., Inbox]
) -> None:
    box = inbox("later", "people")
    started = time.monotonic()
    assert await answer_to(writer.dpub, "later", 300, b"deferred") == b"OK"
    assert await answer_to(writer.pub, "later", b"now") == b"OK"
    assert (await box.next()).body == b"now"
    message = await box.next()
    assert (message.body, message.attempts) == (b"deferred", 1)
    assert time.monotonic() - started >= 0.3
    message.finish()


async def test_a_requeued_message_comes_again(writer: nsq.Writer, inbox: Callable[..., Inbox]) -> None:
    box = inbox("again", "people")
    assert await answer_to(writer.pub, "again", b"try me") == b"OK"
    first = await box.next()
    first.requeue(backoff=False, time_ms=0)
    second = await box.next()
    assert (second.id, second.body, second.attempts) == (first.id, b"try me", 2)
    started = time.monotonic()
    second.requeue(backoff=False, time_ms=200)
    third = await box.next()
    assert (third.id, third.attempts) == (first.id, 3)
    assert time.monotonic() - started >= 0.2
    third.finish()


async def test_a_touched_message_does_not_time_out(writer: nsq.Writer, inbox: Callable[..., Inbox]) -> None:
    box = inbox("slow", "people", msg_timeout=1)
    assert await answer_to(writer.mpub, "slow", [b"touched", b"left alone"]) == b"OK"
    touched, left_alone = await box.next(), await box.next()
    await asyncio.sleep(0.6)
    touched.touch()
    # the other one's time runs out, and this shows that the touched one's would have, too
    again = await box.next()
    assert (again.body, again.id, again.attempts) == (b"left alone", left_alone.id, 2)
    again.finish()
    touched.finish()
    assert await answer_to(writer.pub, "slow", b"the end") == b"OK"
    end = await box.next()
    assert end.body == b"the end"
    assert box.empty
    end.finish()


async def test_an_error_ends_the_connection_and_reaches_the_publisher(writer: nsq.Writer) -> None:
    error = await answer_to(writer.pub, "no:topic", b"body")
    assert isinstance(error, nsq.Error)
    await until(lambda: not writer.conns)


@pytest.mark.parametrize("level", range(1, 10))
async def test_deflate_at_every_level(tmp_path: Path, level: int) -> None:
    bodies = [b"small", b"again and again " * 20_000, os.urandom(300_000), b"\n" * 1000]
    with Nsqd(tmp_path).start("--max-deflate-level=9") as nsqd:
        settings = {"deflate": True, "deflate_level": level}
        writer = nsq.Writer([nsqd.tcp_address], reconnect_interval=3600.0, **settings)
        await until(lambda: writer.conns)
        assert await answer_to(writer.mpub, "packed", bodies) == b"OK"
        box = Inbox(nsqd, "packed", "people", **settings)
        messages = [await box.next() for _ in bodies]
        assert [message.body for message in messages] == bodies
        for message in messages:
            message.finish()
        await until(lambda: finished(nsqd, len(bodies)))
        _, stats = await nsqd.http("GET", "/stats?format=json")
        assert b'"deflate":true' in stats
        box.reader.close()
        for conn in list(writer.conns.values()):
            conn.close()
