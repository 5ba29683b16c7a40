"""Peeks: every state, every kind of body, and nothing consumed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nsquark.nsqd.http import peek as peek_module
from tests.nsqd.api import Api, running


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


async def peek(api: Api, path: str) -> Any:
    answer = await api.get(path)
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def bodies(api: Api, path: str) -> list[str]:
    return [message["body"] for message in (await peek(api, path))["messages"]]


async def test_the_newest_of_a_topic_or_those_from_a_position(api: Api) -> None:
    for number in range(20):
        await api.done("/pub?topic=t", b"%d" % number)
    assert await bodies(api, "/topic/peek?topic=t") == [f"{number}" for number in range(10, 20)]
    assert await bodies(api, "/topic/peek?topic=t&limit=2") == ["18", "19"]
    assert await bodies(api, "/topic/peek?topic=t&from=5&limit=3") == ["5", "6", "7"]
    assert await bodies(api, "/topic/peek?topic=t&from=20") == []
    assert await bodies(api, "/topic/peek?topic=t&limit=0") == []
    answer = await peek(api, "/topic/peek?topic=t")
    assert (answer["topic_name"], answer["first"], answer["next"]) == ("t", 0, 20)
    assert (await api.topic("t"))["depth"] == 20


async def test_a_message_is_shown_with_all_that_is_known(api: Api) -> None:
    before = time.time_ns()
    await api.done("/pub?topic=t", "h\u00e9llo <b>\n".encode())
    await api.done("/pub?topic=t&defer=60000", b"\xff\x00")
    text, binary = (await peek(api, "/topic/peek?topic=t"))["messages"]
    assert before <= text.pop("timestamp") <= time.time_ns()
    assert len(text.pop("id")) == 16
    assert text == {"position": 0, "attempts": 0, "due": None, "size": 11, "body": "h\u00e9llo <b>\n"}
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
    assert "body" not in binary
    assert binary["due"] > before + 59 * 10**9


async def test_an_empty_topic(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    assert await bodies(api, "/topic/peek?topic=t") == []
    await api.done("/pub?topic=e%23ephemeral", b"in memory")
    assert await bodies(api, "/topic/peek?topic=e%23ephemeral") == ["in memory"]


async def test_bodies_have_bounds_and_one_is_always_shown(api: Api) -> None:
    for _ in range(5):
        await api.done("/pub?topic=t", b"x" * 1000)
    assert len(await bodies(api, "/topic/peek?topic=t&max_bytes=0")) == 1
    assert len(await bodies(api, "/topic/peek?topic=t&max_bytes=1")) == 1
    assert len(await bodies(api, "/topic/peek?topic=t&max_bytes=2500")) == 2
    assert len(await bodies(api, "/topic/peek?topic=t&max_bytes=5000")) == 5


async def test_the_states_of_a_channel(api: Api) -> None:
    path = "/channel/peek?topic=t&channel=c"
    client = await api.client()
    await client.sub("t", "c", rdy=3)
    await client.mpub("t", [b"flying", b"given back", b"deferred", b"fresh", b"fresher"])
    messages = {message.body: message for message in [await client.message() for _ in range(3)]}
    client.rdy(0)
    client.req(messages[b"deferred"], 50_000)
    client.req(messages[b"given back"])
    await client.dpub("t", 60_000, b"later")
    await client.caught_up()

    (flying,) = (await peek(api, f"{path}&state=in_flight"))["messages"]
    assert (flying["body"], flying["attempts"], flying["position"]) == ("flying", 1, 0)
    assert flying["id"] == messages[b"flying"].id.decode()
    assert flying["client"].startswith("127.0.0.1:")
    assert flying["deadline"] - flying["delivered"] == 60 * 10**9

    deferred = (await peek(api, f"{path}&state=deferred"))["messages"]
    assert [(each["body"], each["attempts"]) for each in deferred] == [("deferred", 1), ("later", 0)]
    assert time.time_ns() < deferred[0]["due"] < deferred[1]["due"]

    (requeued,) = (await peek(api, f"{path}&state=requeued"))["messages"]
    assert (requeued["body"], requeued["attempts"]) == ("given back", 1)

    assert await bodies(api, path) == ["given back", "fresh", "fresher"]
    assert await bodies(api, f"{path}&limit=2") == ["given back", "fresh"]
    answer = await peek(api, f"{path}&limit=1")
    assert (answer["depth"], answer["in_flight_count"], answer["deferred_count"]) == (3, 1, 2)

    client.rdy(10)
    assert {(await client.message()).body for _ in range(3)} == {b"given back", b"fresh", b"fresher"}


async def test_many_scattered_messages(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=500, mem_queue_size=10) as api:
        client = await api.client()
        await client.sub("t", "c", rdy=200)
        for number in range(200):
            await client.pub("t", b"%d" % number)
        for _ in range(200):
            message = await client.message()
            if int(message.body) % 3:
                client.fin(message)
        await client.caught_up()
        expected = [f"{number}" for number in range(0, 200, 3)]
        path = "/channel/peek?topic=t&channel=c&state=in_flight&limit=1000"
        assert await bodies(api, path) == expected


async def test_what_is_deleted_while_other_ranges_are_read_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peek_module, "AT_ONCE", 1)
    async with running(tmp_path, max_bytes_per_file=2000) as api:
        client = await api.client()
        await client.sub("t", "c", rdy=1)
        for number in range(40):
            await client.pub("t", b"%03d" % number * 30)
        message = await client.message()
        client.rdy(0)
        client.req(message)  # a range of its own, before all others
        await client.caught_up()
        topic = api.broker.topics["t"]
        work_in_thread = api.broker.reads.run

        async def consumed_meanwhile(work: Callable[[], object]) -> object:
            done = await work_in_thread(work)
            topic.channels["c"].commit(30)
            list(topic.trimming.steps_of_files(0.0))
            return done

        monkeypatch.setattr(api.broker.reads, "run", consumed_meanwhile)
        assert len(await bodies(api, "/channel/peek?topic=t&channel=c&state=ready&limit=100")) == 1
        assert 0 < topic.log.first < 30
        assert (await api.get("/ping")).body == b"OK"
