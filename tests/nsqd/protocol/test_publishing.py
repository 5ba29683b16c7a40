"""The two ways of a publish, and that both count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nsquark.errors import BadTopic, Invalid, PubFailed
from nsquark.nsqd.protocol.publishing import checked_name
from tests.daemon import dpub, mpub, pub
from tests.nsqd.api import Api, running


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


@pytest.mark.parametrize(
    ("command", "params", "error"),
    [
        ("PUB", [b"PUB"], b"E_INVALID PUB insufficient number of parameters"),
        ("PUB", [b"PUB", b"a b"], b'E_BAD_TOPIC PUB topic name "a b" is not valid'),
        ("PUB", [b"PUB", b"\xff"], b'E_BAD_TOPIC PUB topic name "\\xff" is not valid'),
        ("MPUB", [b"MPUB", b""], b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "" is not valid'),
    ],
)
def test_a_bad_name_is_refused_in_nsqs_words(command: str, params: list[bytes], error: bytes) -> None:
    with pytest.raises((BadTopic, Invalid)) as caught:
        checked_name(command, params)
    assert caught.value.pack() == error


@pytest.mark.parametrize("make", [pub, lambda topic, body: mpub(topic, [body])])
async def test_publishes_are_counted_on_either_way(api: Api, make: Callable[[str, bytes], bytes]) -> None:
    client = await api.client()
    for topic, number in (("a", 3), ("b", 1), ("a", 2)):
        for _ in range(number):
            client.send(make(topic, b"x"))
            await client.ok()
    [connection] = api.broker.connections
    assert connection.pub_counts == {"a": 5, "b": 1}
    assert (await api.topic("a"))["message_count"] == 5


async def test_another_command_ends_the_short_way_and_a_publish_begins_it_again(api: Api) -> None:
    client = await api.client()
    await client.pub("t", b"1")
    [connection] = api.broker.connections
    assert connection._stream.following
    client.send(b"NOP\n" + pub("other", b"2") + b"NOP\n")
    await client.ok()
    assert not connection._stream.following
    await client.pub("t", b"3")
    assert connection._stream.following
    assert connection.pub_counts == {"t": 2, "other": 1}


async def test_a_topic_that_is_deleted_is_made_again_by_the_same_line(api: Api) -> None:
    client = await api.client()
    for _ in range(2):
        await client.pub("t", b"x")
        await client.pub("t", b"x")
        await api.done("/topic/delete?topic=t")
    await client.pub("t", b"x")
    assert (await api.topic("t"))["message_count"] == 1
    [connection] = api.broker.connections
    assert connection.pub_counts == {"t": 5}


async def test_behind_a_publish_that_was_refused_nothing_is_stored(api: Api) -> None:
    client = await api.client()
    await client.pub("t", b"1")
    [connection] = api.broker.connections
    answers = connection._answers
    waiting = answers.expect(PubFailed)  # as a publish that the other members do not have yet
    answers.expect(PubFailed).settle("replica group: 1 of 2 copies")
    client.send(pub("t", b"2") + b"NOP\n" + pub("t", b"3") + mpub("t", [b"4"]) + dpub("t", 1000, b"5"))
    client.send(pub("u", b"6"))
    for _ in range(3):
        assert (await api.topic("t"))["message_count"] == 1
    waiting.settle(None)
    await client.ok()
    assert await client.error() == b"E_PUB_FAILED PUB failed replica group: 1 of 2 copies"
    await client.closed()
    assert (await api.topic("t"))["message_count"] == 1
    assert "u" not in api.broker.topics
