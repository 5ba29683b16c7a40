"""`/topic/retention` and `/channel/hold_timeout`: what is kept, also over restarts."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nsquark.log import Retention
from nsquark.nsqd.storage import metadata_saving
from tests.daemon import Nsqd, until
from tests.nsqd.api import Api, running

HOUR = 3600 * 10**9


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path, retention_bytes=1000, retention_time=60.0, max_bytes_per_file=1000) as api:
        yield api


async def change(api: Api, query: str) -> Any:
    answer = await api.post(f"/topic/retention?topic=t&{query}")
    assert answer.status == 200, answer
    told = json.loads(answer.body)
    assert json.loads((await api.get("/topic/retention?topic=t")).body) == told
    (topic,) = (await api.stats("&topic=t"))["topics"]
    assert (topic["retention_bytes"], topic["retention_time"]) == (
        told["retention_bytes"],
        told["retention_time"],
    )
    return told["retention_bytes"], told["retention_time"], told["own_bytes"], told["own_time"]


async def test_a_topic_keeps_what_it_is_told_and_otherwise_what_the_flags_say(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    minute = 60 * 10**9
    told = json.loads((await api.get("/topic/retention?topic=t")).body)
    assert list(told) == [
        "topic_name", "retention_bytes", "retention_time", "own_bytes", "own_time", "archive_bytes",
        "archive_time", "own_archive_bytes", "own_archive_time", "epoch", "first", "next", "origin", "bytes",
        "archived_bytes",
    ]  # fmt: skip
    assert await change(api, "bytes=5000") == (5000, minute, 5000, None)
    assert await change(api, "time=168h") == (5000, 168 * HOUR, 5000, 168 * HOUR)
    assert await change(api, "bytes=unlimited&time=0") == (-1, 0, -1, 0)
    assert await change(api, "bytes=default") == (1000, 0, None, 0)
    assert await change(api, "time=unlimited") == (1000, -1, None, -1)
    assert await change(api, "time=default") == (1000, minute, None, None)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/topic/retention?topic=nope&bytes=1", 404, "TOPIC_NOT_FOUND"),
        ("/topic/retention?bytes=1", 400, "MISSING_ARG_TOPIC"),
        ("/topic/retention?topic=t", 400, "MISSING_ARG_BYTES"),
        ("/topic/retention?topic=t&bytes=-1", 400, "INVALID_ARG_BYTES"),
        ("/topic/retention?topic=t&bytes=1k", 400, "INVALID_ARG_BYTES"),
        ("/topic/retention?topic=t&bytes=9223372036854775808", 400, "INVALID_ARG_BYTES"),
        ("/topic/retention?topic=t&time=-1h", 400, "INVALID_ARG_TIME"),
        ("/topic/retention?topic=t&time=24", 400, "INVALID_ARG_TIME"),
        ("/topic/retention?topic=t&bytes=1&time=x", 400, "INVALID_ARG_TIME"),
        ("/topic/retention?topic=t%23ephemeral&bytes=1", 400, "TOPIC_IS_EPHEMERAL"),
        ("/channel/hold_timeout?topic=t&channel=nope&to=1h", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/hold_timeout?topic=t&channel=c", 400, "MISSING_ARG_TO"),
        ("/channel/hold_timeout?topic=t&channel=c&to=-1s", 400, "INVALID_ARG_TO"),
        ("/channel/hold_timeout?topic=t&channel=c&to=soon", 400, "INVALID_ARG_TO"),
    ],
)
async def test_bad_requests(api: Api, path: str, status: int, message: str) -> None:
    for name in ("t", "t%23ephemeral"):
        await api.done(f"/topic/create?topic={name}")
    await api.done("/channel/create?topic=t&channel=c")
    answer = await api.post(path)
    assert (answer.status, json.loads(answer.body)) == (status, {"message": message})
    assert api.broker.topics["t"].retention == Retention()


async def publish(api: Api, count: int) -> None:
    for _ in range(count):
        await api.done("/pub?topic=t", b"x" * 200)


async def test_the_log_is_kept_and_let_go_as_it_is_told(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    await api.done("/channel/create?topic=t&channel=c")
    await change(api, "bytes=unlimited&time=unlimited")
    await publish(api, 40)
    await api.done("/channel/seek?topic=t&channel=c&to=latest")
    topic = api.broker.topics["t"]
    topic.trimming.run(2e9)
    assert topic.log.first == 0
    await change(api, "bytes=5000&time=unlimited")
    topic.trimming.run(2e9)
    assert 0 < topic.log.first < 30
    assert topic.log.size <= 5000
    assert json.loads((await api.get("/log/range?topic=t")).body)["origin"] == 0
    await change(api, "bytes=0&time=0")
    topic.trimming.run(2e9)
    assert topic.log.first >= 35


async def test_it_is_as_it_was_if_it_cannot_be_stored(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.done("/topic/create?topic=t")
    await change(api, "bytes=unlimited&time=unlimited")
    limits = api.broker.topics["t"].log.limits

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(metadata_saving, "write_atomically", refuse)
        answer = await api.post("/topic/retention?topic=t&bytes=0&time=0")
    assert (answer.status, json.loads(answer.body)["message"]) == (503, "NOT_STORED")
    assert api.broker.topics["t"].retention == Retention(-1, -1)
    assert api.broker.topics["t"].log.limits == limits
    assert await change(api, "bytes=7") == (7, -1, 7, -1)


async def test_a_topic_that_is_created_again_has_no_retention_of_its_own(api: Api) -> None:
    await api.done("/pub?topic=t", b"one")
    await change(api, "bytes=7")
    await api.done("/topic/delete?topic=t")
    await api.done("/topic/create?topic=t")
    told = json.loads((await api.get("/topic/retention?topic=t")).body)
    assert (told["own_bytes"], told["origin"], told["first"]) == (None, 1, 1)


async def test_both_survive_a_kill_right_after_the_answer(tmp_path: Path) -> None:
    with Nsqd(tmp_path).start() as nsqd:
        await nsqd.post("/topic/create?topic=gone")
        await nsqd.post("/pub?topic=gone", b"one")
        await nsqd.post("/topic/delete?topic=gone")
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        await nsqd.post("/channel/hold_timeout?topic=t&channel=c&to=72h")
        await nsqd.post("/topic/retention?topic=t&bytes=12345&time=unlimited")
        nsqd.kill()
        nsqd.start()
        _, answer = await nsqd.http("GET", "/topic/retention?topic=t")
        told = json.loads(answer)
        assert (told["own_bytes"], told["own_time"], told["origin"]) == (12345, -1, 1)
        _, answer = await nsqd.http("GET", "/stats?format=json")
        (channel,) = json.loads(answer)["topics"][0]["channels"]
        assert channel["hold_timeout"] == 72 * HOUR


async def test_a_reader_by_lease_counts_while_its_connection_is_open(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    answer = await api.post("/channel/lease?topic=t&channel=c&owner=me&lease_ms=0")
    assert answer.status == 200
    await api.done("/channel/create?topic=t&channel=c&from=earliest")
    channel = api.broker.topics["t"].channels["c"]
    await until(lambda: channel.idle > 0)
    _, writer = await asyncio.open_connection("127.0.0.1", api.broker.http_port)
    writer.write(b"POST /channel/lease?topic=t&channel=c&owner=me&hold_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n")
    await until(lambda: not channel.idle)
    (told,) = (await api.topic("t"))["channels"]
    assert told["idle_since"] is None
    writer.close()
    await until(lambda: channel.idle)
    (told,) = (await api.topic("t"))["channels"]
    assert told["idle_since"] is not None
    await api.done("/channel/commit?topic=t&channel=c&to=0")


async def test_a_lease_counts_for_a_channel_that_is_created_later(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    await api.done("/channel/lease?topic=t&channel=c&owner=me&lease_ms=10000")
    await api.done("/channel/create?topic=t&channel=c&from=earliest")
    (told,) = (await api.topic("t"))["channels"]
    assert told["idle_since"] is None


async def test_since_when_nobody_reads_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        for name in ("old", "new"):
            await api.done(f"/topic/create?topic={name}")
            await api.done(f"/channel/create?topic={name}&channel=c")
        old = api.broker.topics["old"].channels["c"]
        old.readership.restore(5 * HOUR, old.topic.monotonic())
        before = (await api.topic("old"))["channels"][0]["idle_since"]
    async with running(tmp_path) as api:
        assert abs((await api.topic("old"))["channels"][0]["idle_since"] - before) <= 1
        assert api.broker.topics["old"].channels["c"].holds_log
        assert api.broker.topics["new"].channels["c"].idle < HOUR
        await api.broker.save_metadata()
        client = await api.client()
        await client.sub("old", "c")
        path = tmp_path / "nsqd.dat"
        # it is read now, and a crash must not find otherwise
        await until(lambda: b"idle_since" not in path.read_bytes())
