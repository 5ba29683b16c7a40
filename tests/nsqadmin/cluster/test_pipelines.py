"""Pipelines as the nsqds of a real cluster tell of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nsquark.nsqadmin.cluster import Cluster, Pipelines
from nsquark.nsqadmin.cluster.pipelines import merge_reports, parse_report
from nsquark.nsqadmin.upstream import Upstream
from tests.daemon import Nsqd
from tests.nsqadmin.served import cluster, free_address

HERE = "topic=orders&channel=archive"


async def tell(daemon: Nsqd, where: str = HERE, **fields: Any) -> None:
    report = {"query_id": "q1", "query_name": "archive", "state": "running", **fields}
    status, answer = await daemon.http("POST", f"/channel/report?{where}", json.dumps(report).encode())
    assert (status, answer) == (200, b"")


async def test_a_query_that_reads_two_nodes_is_one_pipeline(tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        await running.fill()
        first, second, third = running.nsqds
        for batch in (1, 2):
            for daemon in (first, second):
                await tell(daemon, batch=batch, lag_messages=9, ui_url="http://driver:4040/x")
        await tell(first, batch=3, lag_messages=7, lag_seconds=0.5)  # the second one has not heard of it yet
        await third.post("/channel/create?topic=solo&channel=zip")
        await tell(third, "topic=solo&channel=zip", query_id="q2", query_name="", state="failed", error="no")
        upstream = Upstream()
        try:
            pipelines = Pipelines(Cluster(upstream, [each.http_address for each in running.lookupds]))
            found = await pipelines.all()
            assert found.failures == []
            archive, unnamed = found.value
            assert (archive.name, archive.last.batch, archive.last.lag_messages) == ("archive", 3, 7)
            assert archive.last.lag_seconds == 0.5
            assert (archive.last.ui_url, archive.last.rows, archive.last_error) == ("", None, None)
            assert sorted((each.node, each.topic_name, each.depth) for each in archive.reads) == sorted(
                [(first.http_address, "orders", 3), (second.http_address, "orders", 4)]
            )
            assert (unnamed.name, unnamed.last.state) == ("q2", "failed")
            assert unnamed.last_error == unnamed.last
            (alone,) = (await pipelines.of_channel("orders", "archive")).value
            assert [report.batch for report in alone.reports] == [1, 2, 3]
            assert (await pipelines.of_channel("orders", "nope")).value == []
            assert json.loads(json.dumps(alone.to_json()))["reports"][0]["ui_url"] == "http://driver:4040/x"
        finally:
            upstream.close()


async def test_a_node_that_is_away_is_named_and_hides_no_other(tmp_path: Path) -> None:
    with Nsqd(tmp_path, "--broadcast-address=127.0.0.1").start() as daemon:
        await daemon.post("/topic/create?topic=orders")
        await daemon.post(f"/channel/create?{HERE}")
        await tell(daemon)
        upstream, away = Upstream(), free_address()
        try:
            found = await Pipelines(Cluster(upstream, [], [away, daemon.http_address])).all()
        finally:
            upstream.close()
    assert [each.name for each in found.value] == ["archive"]
    assert [failure.address for failure in found.failures] == [away]


def test_a_channel_that_two_queries_have_read_has_two_pipelines() -> None:
    reports = [{"query_id": each, "received_ms": time} for time, each in enumerate("aabbb")]
    channel = {
        "topic_name": "t",
        "channel_name": "c",
        "depth": 3,
        "last_error": reports[1],
        "reports": reports,
    }
    first, second = merge_reports([("n:4151", {"channels": [channel]})])
    assert (first.query_id, len(first.reports), second.query_id, len(second.reports)) == ("a", 2, "b", 3)
    assert first.last_error == first.reports[1]
    assert second.last_error is None


def test_what_no_nsqd_would_keep_is_not_shown() -> None:
    report = parse_report({"ui_url": "javascript:alert(1)", "batch": "7", "rows": None, "error": 5})
    assert (report.ui_url, report.batch, report.rows, report.error) == ("", 0, None, "")
    assert merge_reports([("n:4151", {"channels": [{"reports": None}, None, {"last_error": 3}]})]) == []
