"""Reports of streaming queries, merged over the nsqds that got them."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request

from nsquark.nsqadmin.cluster import Cluster
from nsquark.nsqadmin.pages import Pages
from nsquark.nsqadmin.pages.views.pipelines import merge
from nsquark.nsqadmin.upstream import Upstream


def report(query: str, received_ms: int, **fields: object) -> dict[str, Any]:
    return {
        "query_id": query,
        "state": "running",
        "received_ms": received_ms,
        "timestamp_ms": received_ms // 10,
        **fields,
    }


def answer(topic: str, *reports: dict[str, Any], last_error: object = None) -> dict[str, Any]:
    return {
        "channels": [
            {"topic_name": topic, "channel_name": "spark", "last_error": last_error, "reports": list(reports)}
        ]
    }


def test_the_latest_report_of_a_query_counts_whichever_nsqd_has_it() -> None:
    now = int(time.time() * 1000)
    first = answer(
        "orders", report("q", now - 10, batch=1, lag_messages=7), report("q", now, batch=2, lag_messages=5)
    )
    second = answer("payments", report("q", now - 5, batch=1, lag_messages=7))
    (pipeline,) = merge([first, second])
    assert (pipeline.told("batch"), pipeline.told("lag_messages")) == (2, 5)
    assert pipeline.channels == {("orders", "spark"), ("payments", "spark")}
    assert not pipeline.silent_for


def test_what_failed_comes_first_with_its_error() -> None:
    now = int(time.time() * 1000)
    failure = report("z", now, state="failed", error="no space")
    failed = answer("orders", failure, last_error=failure)
    pipelines = merge([answer("orders", report("a", now)), failed])
    assert [each.query_id for each in pipelines] == ["z", "a"]
    assert pipelines[0].error_text == "no space"


def test_a_query_that_runs_and_says_nothing_is_called_silent() -> None:
    (pipeline,) = merge([answer("orders", report("q", 1000))])
    assert pipeline.silent_for > 1e6


def test_answers_of_another_shape_are_borne() -> None:
    assert merge([None, [], {"channels": 3}, {"channels": [None, {"reports": [5]}]}]) == []


async def test_the_page_shows_what_is_told_and_bears_what_is_not() -> None:
    now = int(time.time() * 1000)
    told = report(
        "q", now, query_name="<b>archive", processed_rate=250.1, lag_messages=12, lag_seconds=75.0,
        batch_ms=218, batch=7, rows=1000, sink="files", ui_url="javascript:alert(1)", error="it broke",
    )  # fmt: skip
    pipelines = merge([answer("orders", told, last_error=told), answer("solo", report("bare", 5))])
    upstream = Upstream()
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    page = Pages(Cluster(upstream)).site.render(request, "pipelines.html", {"pipelines": pipelines})
    upstream.close()
    text = bytes(page.body).decode()
    for shown in ("&lt;b&gt;archive", "250", "1m 15s", "218 ms", "it broke", "silent for"):
        assert shown in text
    assert "javascript:" not in text
