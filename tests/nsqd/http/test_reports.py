"""What pipelines tell of their progress: told to a channel, asked for, in /stats and in /metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Nsqd, until
from tests.nsqd.api import Api, running
from tests.spark.broker import ask

HERE = "topic=t&channel=c"
REPORT = {
    "query_id": "4fc11749",
    "run_id": "75938432",
    "query_name": "archive",
    "state": "running",
    "timestamp_ms": 1794794323494,
    "batch": 7,
    "rows": 1000,
    "input_rate": 99.5,
    "processed_rate": 250,
    "batch_ms": 218,
    "lag_messages": 12,
    "lag_seconds": 1.5,
    "log_rows": 500,
    "log_rate": 125.0,
    "log_lag_messages": 6,
    "log_lag_seconds": 0.5,
    "sink": "FileSink[/archive]",
    "ui_url": "http://driver:4040/StreamingQuery/statistics?id=75938432",
    "error": None,
}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        await api.done(f"/channel/create?{HERE}")
        yield api


async def tell(api: Api, where: str = HERE, **changes: object) -> None:
    await api.done(f"/channel/report?{where}", json.dumps({**REPORT, **changes}).encode())


async def told(api: Api, query: str = "") -> list[dict[str, Any]]:
    answer = await api.get(f"/channel/reports?{query}")
    assert answer.status == 200, answer
    channels: list[dict[str, Any]] = json.loads(answer.body)["channels"]
    return channels


async def test_a_report_comes_back_as_it_was_told(api: Api) -> None:
    assert await told(api, HERE) == []
    await api.done("/pub?topic=t", b"unread")
    await tell(api)
    ((channel,), alone) = await told(api), await told(api, HERE)
    assert alone == [channel]
    received = channel["reports"][0].pop("received_ms")
    assert abs(received / 1000 - api.broker.start_time) < 100
    assert channel == {
        "topic_name": "t",
        "channel_name": "c",
        "depth": 1,
        "last_error": None,
        "reports": [REPORT],
    }


async def test_what_a_report_does_not_tell_is_null_and_what_is_unknown_is_left_out(api: Api) -> None:
    await api.done(
        f"/channel/report?{HERE}", b'{"query_id":"q","state":"ended","colour":"green","batch":null}'
    )
    ((report,),) = [channel["reports"] for channel in await told(api)]
    assert report.pop("received_ms")
    assert report.pop("query_id") == "q"
    assert report.pop("state") == "ended"
    assert set(report) == set(REPORT) - {"query_id", "state"}
    assert set(report.values()) == {None}


async def test_the_last_sixty_are_kept_and_the_last_error_for_longer(api: Api) -> None:
    await tell(api, state="failed", error="no such file\n\tat line 1")
    for batch in range(61):
        await tell(api, batch=batch)
    (channel,) = await told(api, HERE)
    assert [each["batch"] for each in channel["reports"]] == list(range(1, 61))
    assert channel["last_error"]["error"] == "no such file\n\tat line 1"
    (channel,) = await told(api, f"{HERE}&limit=2")
    assert [each["batch"] for each in channel["reports"]] == [59, 60]
    (channel,) = await told(api, f"{HERE}&limit=0")
    assert channel["reports"] == []


async def test_reports_are_asked_for_by_topic_and_channel(api: Api) -> None:
    await api.done("/topic/create?topic=u")
    for where in ("topic=t&channel=d", "topic=u&channel=c", "topic=u&channel=silent"):
        await api.done(f"/channel/create?{where}")
    for where in ("topic=u&channel=c", "topic=t&channel=d", HERE):
        await tell(api, where)

    async def names(query: str) -> list[tuple[str, str]]:
        return [(each["topic_name"], each["channel_name"]) for each in await told(api, query)]

    assert await names("") == [("t", "c"), ("t", "d"), ("u", "c")]
    assert await names("topic=t") == [("t", "c"), ("t", "d")]
    assert await names("channel=c") == [("t", "c"), ("u", "c")]
    assert await names("topic=u&channel=silent") == []


@pytest.mark.parametrize("path", ["/channel/delete?topic=t&channel=c", "/topic/delete?topic=t"])
async def test_reports_go_with_the_channel(api: Api, path: str) -> None:
    await tell(api)
    await api.done(path)
    assert await told(api) == []
    await api.done("/topic/create?topic=t")
    await api.done(f"/channel/create?{HERE}")
    assert await told(api, HERE) == []
    assert "pipeline" not in (await api.topic("t"))["channels"][0]


async def test_reports_go_with_an_ephemeral_channel(api: Api) -> None:
    client = await api.client()
    await client.sub("t", "e#ephemeral")
    await tell(api, "topic=t&channel=e%23ephemeral")
    client.close()
    await until(lambda: "e#ephemeral" not in api.broker.topics["t"].channels)
    assert await told(api) == []
    assert not api.broker.reports


async def test_stats_tell_the_last_report_in_short(api: Api) -> None:
    await api.done("/channel/create?topic=t&channel=d")
    await tell(api, batch=6)
    await tell(api, query_name="<b>")
    with_report, without = (await api.topic("t"))["channels"]
    assert with_report["pipeline"].pop("received_ms")
    assert with_report["pipeline"] == {
        "query_name": "<b>",
        "state": "running",
        "batch": 7,
        "processed_rate": 250,
        "batch_ms": 218,
        "lag_messages": 12,
        "lag_seconds": 1.5,
    }
    assert "pipeline" not in without
    assert b"<b>" not in (await api.get("/stats?format=json")).body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query_id", ""),
        ("query_id", None),
        ("query_id", 7),
        ("query_id", "x" * 201),
        ("query_name", "two\nlines"),
        ("query_name", "\ud800"),
        ("state", "RUNNING"),
        ("state", ["running"]),
        ("state", None),
        ("batch", -1),
        ("batch", 1.5),
        ("batch", True),
        ("batch", 1 << 63),
        ("rows", "7"),
        ("lag_seconds", -0.1),
        ("lag_seconds", float("nan")),
        ("batch_ms", float("inf")),
        ("batch_ms", 10**400),
        ("ui_url", "javascript:alert(1)"),
        ("ui_url", "http://host/ x"),
        ("ui_url", "http://host/\n"),
        ("sink", {"description": "x"}),
        ("error", "\x1b[31m"),
        ("error", "x" * 2001),
    ],
)
async def test_a_field_that_cannot_be_is_named(api: Api, field: str, value: object) -> None:
    answer = await api.post(f"/channel/report?{HERE}", json.dumps({**REPORT, field: value}).encode())
    document = json.loads(answer.body)
    assert (answer.status, document["message"]) == (400, "INVALID_REPORT")
    assert document["reason"].startswith(f"{field} cannot be ")
    assert len(document["reason"]) < 150
    assert await told(api) == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 16000, b'{"batch":' + b"9" * 5000 + b"}"]
)
async def test_what_is_no_object_is_refused(api: Api, body: bytes) -> None:
    answer = await api.post(f"/channel/report?{HERE}", body)
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "INVALID_REPORT")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/channel/report?topic=nope&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("/channel/report?topic=t&channel=nope", 404, "CHANNEL_NOT_FOUND"),
        ("/channel/report?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("/channel/report?channel=c", 400, "MISSING_ARG_TOPIC"),
    ],
)
async def test_a_report_needs_its_channel(api: Api, path: str, status: int, message: str) -> None:
    answer = await api.post(path, json.dumps(REPORT).encode())
    assert (answer.status, json.loads(answer.body)["message"]) == (status, message)


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("topic=nope", 404, "TOPIC_NOT_FOUND"),
        ("topic=t&channel=nope", 404, "CHANNEL_NOT_FOUND"),
        ("channel=%20", 400, "INVALID_ARG_CHANNEL"),
        ("limit=61", 400, "INVALID_ARG_LIMIT"),
    ],
)
async def test_bad_questions(api: Api, query: str, status: int, message: str) -> None:
    answer = await api.get(f"/channel/reports?{query}")
    assert (answer.status, json.loads(answer.body)["message"]) == (status, message)


async def test_a_large_report_is_refused(api: Api) -> None:
    answer = await api.post(f"/channel/report?{HERE}", json.dumps({**REPORT, "more": "x" * 16384}).encode())
    assert (answer.status, json.loads(answer.body)["message"]) == (413, "BODY_TOO_BIG")


def test_a_real_nsqd_keeps_reports_until_it_ends(tmp_path: Path) -> None:
    with Nsqd(tmp_path).start() as nsqd:
        for path in ("/topic/create?topic=t", f"/channel/create?{HERE}"):
            assert ask(nsqd.http_address, "POST", path)[0] == 200
        body = json.dumps(REPORT).encode()
        assert ask(nsqd.http_address, "POST", f"/channel/report?{HERE}", body) == (200, b"")
        status, answer = ask(nsqd.http_address, "GET", "/channel/reports")
        assert (status, len(json.loads(answer)["channels"])) == (200, 1)
        nsqd.stop()
        nsqd.start()
        assert ask(nsqd.http_address, "GET", "/channel/reports") == (200, b'{"channels":[]}')
