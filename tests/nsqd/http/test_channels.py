"""Moving a channel: where it begins, to a position or a time, past what is finished elsewhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nsqd.api import Api, running
from tests.nsqd.http.test_log import publish, told


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


async def test_seek_brings_back_what_was_finished(tmp_path: Path) -> None:
    async with running(tmp_path, retention_bytes=1 << 30) as api:
        client = await api.client()
        await client.sub("t", "c", rdy=10)
        for body in (b"one", b"two", b"three"):
            await client.pub("t", body)
            client.fin(await client.message())
        await client.caught_up()
        state = await told(api, "/channel/seek?topic=t&channel=c&to=1", "POST")
        assert state["position"] == 1
        again = [await client.message() for _ in range(2)]
        assert [(message.body, message.attempts) for message in again] == [(b"two", 1), (b"three", 1)]
        state = await told(api, "/channel/seek?topic=t&channel=c&to=latest", "POST")
        assert (state["position"], state["in_flight_count"]) == (3, 0)
        client.fin(again[0])
        assert (await client.error()).startswith(b"E_FIN_FAILED FIN %b failed ID not in flight" % again[0].id)
        await told(api, "/channel/seek?topic=t&channel=c&to=earliest", "POST")
        assert (await client.message()).body == b"one"


async def test_seek_to_a_time(tmp_path: Path) -> None:
    async with running(tmp_path, retention_bytes=1 << 30) as api:
        await publish(api, b"one")
        await api.done("/channel/create?topic=t&channel=c")
        await asyncio.sleep(0.002)
        between = time.time_ns() // 1_000_000
        await publish(api, b"two")
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between // 1000)) + f".{between % 1000:03d}"
        for to in (
            f"to={text}Z",
            f"to={text}%2B00:00",
            f"to={text}+00:00",
            f"to={text}",
            f"timestamp_ms={between}",
        ):
            await told(api, "/channel/seek?topic=t&channel=c&to=earliest", "POST")
            assert (await told(api, f"/channel/seek?topic=t&channel=c&{to}", "POST"))["position"] == 1
        assert (await told(api, "/channel/seek?topic=t&channel=c&to=2100-01-01", "POST"))["position"] == 2
        assert (await told(api, "/channel/seek?topic=t&channel=c&to=1960-01-01", "POST"))["position"] == 0


async def test_a_channel_begins_where_it_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, retention_bytes=1 << 30) as api:
        await publish(api, b"one", b"two", b"three")
        for name, begin, position in (("l", "latest", 3), ("e", "earliest", 0), ("p", "2", 2)):
            state = await told(api, f"/channel/create?topic=t&channel={name}&from={begin}", "POST")
            assert (state["created"], state["position"]) == (True, position)
            state = await told(api, f"/channel/create?topic=t&channel={name}&from=earliest", "POST")
            assert (state["created"], state["position"]) == (False, position)
        depths = {each["channel_name"]: each["depth"] for each in (await api.topic("t"))["channels"]}
        assert depths == {"l": 0, "e": 3, "p": 1}
        assert (await api.post("/channel/create?topic=t&channel=x&from=9")).status == 416
        assert (await api.post("/channel/create?topic=t&channel=x")).body == b""


async def test_commit_finishes_what_is_in_flight_and_deferred(api: Api) -> None:
    client = await api.client()
    await client.sub("t", "c", rdy=2)
    await client.mpub("t", [b"one", b"two"])
    await client.dpub("t", 60000, b"later")
    await client.pub("t", b"four")
    first, second = await client.message(), await client.message()
    client.req(second, 60000)
    assert (await client.message()).body == b"four"
    state = await told(api, "/channel/commit?topic=t&channel=c&to=3", "POST")
    assert (state["position"], state["in_flight_count"], state["deferred_count"]) == (3, 1, 0)
    client.fin(first)
    assert b"ID not in flight" in await client.error()
    again = await told(api, "/channel/commit?topic=t&channel=c&to=3", "POST")
    assert again == state


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/channel/seek?topic=t&channel=c", 400, "MISSING_ARG_TO"),
        ("/channel/seek?topic=t&channel=c&to=never", 400, "INVALID_ARG_TO"),
        ("/channel/seek?topic=t&channel=c&to=1&timestamp_ms=1", 400, "INVALID_ARG_TO"),
        ("/channel/seek?topic=t&channel=c&to=3", 416, "POSITION_NOT_REACHED"),
        ("/channel/seek?topic=t&channel=nope&to=1", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/commit?topic=t&channel=c", 400, "MISSING_ARG_TO"),
        ("/channel/commit?topic=t&channel=c&to=latest", 400, "INVALID_ARG_TO"),
        ("/channel/commit?topic=t&channel=c&to=3", 416, "POSITION_NOT_REACHED"),
        ("/channel/create?topic=t&channel=d&from=soon", 400, "INVALID_ARG_FROM"),
        ("/channel/create?topic=nope&channel=d&from=earliest", 404, "TOPIC_NOT_FOUND"),
        ("/channel/max_attempts?topic=t&channel=c&to=65536", 400, "INVALID_ARG_TO"),
        ("/channel/max_attempts?topic=t&channel=c", 400, "MISSING_ARG_TO"),
        ("/channel/redeliver?topic=t&channel=c&limit=x", 400, "INVALID_ARG_LIMIT"),
        ("/channel/redeliver?topic=t&channel=c&id=", 400, "INVALID_ARG_ID"),
        ("/channel/redeliver?topic=t&channel=c&id=-1", 400, "INVALID_ARG_ID"),
        ("/channel/redeliver?topic=t&channel=c&id=0123456789abcdeg", 400, "INVALID_ARG_ID"),
        ("/channel/redeliver?topic=t&channel=c&id=01234567890123456", 400, "INVALID_ARG_ID"),
        ("/channel/redeliver?topic=t&channel=c&id=0123456789abcdef", 404, "DEAD_LETTER_NOT_FOUND"),
        ("/channel/redeliver?topic=t&channel=c&id=0", 404, "DEAD_LETTER_NOT_FOUND"),
    ],
)
async def test_bad_moves(api: Api, path: str, status: int, message: str) -> None:
    await publish(api, b"one", b"two")
    await api.done("/channel/create?topic=t&channel=c")
    answer = await api.post(path)
    assert (answer.status, json.loads(answer.body)["message"]) == (status, message)
