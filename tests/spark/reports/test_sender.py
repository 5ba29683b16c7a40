"""Reports are sent beside the query: late, seldom or not at all, but nothing waits for them."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from nsquark.spark.columns import SCHEMA
from nsquark.spark.reports.log_progress import LogProgress
from nsquark.spark.reports.sender import ProgressSender
from tests.spark.broker import Broker, numbered

OF_ONE_LOG = ("log_rows", "log_rate", "log_lag_messages", "log_lag_seconds")


class Plan:
    """What the JVM shows of a query: leaves of its plan, with the options of each."""

    def __init__(
        self, *options: dict[str, str], source: str = "nsq", kind: str = "StreamingRelationV2"
    ) -> None:
        self._options = options
        self._source = source
        self._kind = kind

    def analyzedPlan(self) -> Plan:
        return self

    def collectLeaves(self) -> Plan:
        return self

    def size(self) -> int:
        return len(self._options)

    def apply(self, number: int) -> Leaf:
        return Leaf(self._options[number], self._source, self._kind)


class Leaf:
    def __init__(self, options: dict[str, str], source: str, kind: str) -> None:
        self._options, self._source, self._kind = options, source, kind

    def getClass(self) -> Leaf:
        return self

    def getSimpleName(self) -> str:
        return self._kind

    def sourceName(self) -> str:
        return self._source

    def schema(self) -> Leaf:
        return self

    def json(self) -> str:
        return str(SCHEMA.json())

    def extraOptions(self) -> Leaf:
        return self

    def asCaseSensitiveMap(self) -> dict[str, str]:
        return self._options


def options(*addresses: str, **more: str) -> dict[str, str]:
    return {"nsqd.http.addresses": ",".join(addresses), "subscribe": "t", "channel": "c", **more}


def fields(run_id: str) -> dict[str, Any]:
    return {"query_id": f"id of {run_id}", "run_id": run_id, "query_name": "x"}


def batch(number: int, offset: dict[str, Any] | None = None, before: dict[str, Any] | None = None) -> str:
    ours = {"startOffset": before, "endOffset": offset}
    sources = [{"endOffset": {"3": {"partition": 1}}}, ours]
    return json.dumps({"batchId": number, "sources": sources, "durationMs": {"triggerExecution": 7}})


def offset(broker: Broker, position: int, topic: str = "t") -> dict[str, Any]:
    log = broker.log(topic)
    return {topic: {log["node"]: {"epoch": log["epoch"], "nsqd": "x", "offset": position}}}


def told(broker: Broker, channel: str = "c") -> list[dict[str, Any]]:
    channels = broker.ask("GET", f"/channel/reports?channel={channel}")["channels"]
    return [report for channel in channels for report in channel["reports"]]


def ready(broker: Broker, count: int = 5, channel: str = "c") -> Broker:
    broker.publish("t", numbered(count))
    broker.ask("POST", f"/channel/create?topic=t&channel={channel}&from=earliest")
    return broker


def test_the_lag_is_that_of_all_logs_of_the_query_and_of_each_of_them(
    broker: Broker, other: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    published: list[LogProgress] = []
    ready(broker, 5)
    ready(other, 7)
    sender = ProgressSender()
    sender.start("r", fields("r"), Plan(options(broker.http_address, other.http_address)))
    offsets = {"t": {**offset(broker, 5)["t"], **offset(other, 3)["t"]}}
    before = {"t": {**offset(broker, 0)["t"], **offset(other, 1)["t"]}}
    sender.publish_to(published.extend)
    sender.publish_to(lambda _: 1 / 0)  # it is logged, and harms nothing
    with caplog.at_level("INFO", "nsquark.spark.reports"):
        sender.progress("r", batch(4, offsets, before))
        assert sender.wait(20)
    by_nsqd = {each.nsqd: each for each in published}
    assert by_nsqd.keys() == {broker.tcp_address, other.tcp_address}
    one = by_nsqd[other.tcp_address]
    assert (one.topic, one.channel, one.batch, one.batch_seconds, one.rows) == ("t", "c", 4, 0.007, 2)
    assert (one.rate, one.lag_messages) == (285.714, 4)
    line = f"query x, topic t at nsqd {other.tcp_address}: batch 4 had 2 messages in 0.007 s (285.714 a "
    assert any(each.startswith(line) for each in caplog.messages)
    assert "the progress of a query is not published: division by zero" in caplog.messages
    (here,), (there,) = told(broker), told(other)
    assert here.pop("received_ms")
    assert there.pop("received_ms")
    here_alone, there_alone = ([each.pop(name) for name in OF_ONE_LOG] for each in (here, there))
    assert here == there
    assert here_alone == [5, 714.286, 0, 0.0]  # within 7 ms
    assert there_alone[:3] == [2, 285.714, 4]
    assert there_alone[3] == there["lag_seconds"]
    assert (here["batch"], here["batch_ms"], here["lag_messages"]) == (4, 7, 4)
    assert 0 < here["lag_seconds"] < 600


def test_a_position_in_another_log_of_the_same_name_is_no_lag(broker: Broker) -> None:
    ready(broker)
    before = offset(broker, 3)
    broker.ask("POST", "/topic/delete?topic=t")
    ready(broker)
    sender = ProgressSender()
    sender.start("r", fields("r"), Plan(options(broker.http_address)))
    sender.progress("r", batch(0, before))
    assert sender.wait(20)
    (report,) = told(broker)
    assert (report["lag_messages"], report["lag_seconds"]) == (None, None)


def test_each_source_has_its_own_channel_and_offset(broker: Broker) -> None:
    ready(broker, 5)
    broker.ask("POST", "/channel/create?topic=t&channel=d")
    sender = ProgressSender()
    given = options(broker.http_address)
    sender.start("r", fields("r"), Plan(given, {**given, "channel": "d"}, given))
    sources = [{"endOffset": json.dumps(offset(broker, position))} for position in (1, 3)]
    sender.progress("r", json.dumps({"batchId": 0, "sources": sources}))
    assert sender.wait(20)
    for channel in "cd":
        (report,) = told(broker, channel)
        assert report["lag_messages"] == 4 + 2


def test_of_many_batches_the_newest_is_told_and_the_end_at_once(broker: Broker) -> None:
    ready(broker)
    sender = ProgressSender(interval=1000)
    sender.start("r", fields("r"), Plan(options(broker.http_address)))
    sender.progress("r", batch(0))
    assert sender.wait(20)
    for number in range(1, 1000):
        sender.progress("r", batch(number))
    assert not sender.wait(0.05)  # the interval is not over
    sender.idle("r")
    sender.end("r", "")
    assert sender.wait(20, ends=True)
    assert [(each["batch"], each["state"]) for each in told(broker)] == [(0, "running"), (999, "ended")]
    sender.progress("r", batch(1000))  # of a run that has ended
    assert sender.wait(0)


def test_an_idle_query_tells_its_lag_and_no_rates(broker: Broker) -> None:
    ready(broker)
    sender = ProgressSender(interval=0)
    sender.start("r", fields("r"), Plan(options(broker.http_address)))
    sender.progress("r", batch(0, offset(broker, 5)))
    assert sender.wait(20)
    broker.publish("t", numbered(2))
    sender.idle("r")
    assert sender.wait(20)
    busy, idle = told(broker)
    assert (busy["lag_messages"], busy["processed_rate"]) == (0, None)
    assert (idle["lag_messages"], idle["processed_rate"], idle["rows"], idle["batch"]) == (2, 0, 0, 0)


def test_nobody_waits_for_an_nsqd_that_does_not_answer(broker: Broker) -> None:
    ready(broker)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections come about, and nothing more
        sender = ProgressSender(interval=0)
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        sender.start("mute", fields("mute"), Plan(options(mute, requestTimeoutMs="300")))
        sender.start("r", fields("r"), Plan(options(broker.http_address)))
        began = time.monotonic()
        for number in range(1000):
            sender.progress("mute", batch(number))
        sender.progress("r", batch(0))
        sender.end("mute", "it failed")
        assert time.monotonic() - began < 20  # a second for three of them, had anyone waited
        sender.end("r", "")
        assert sender.wait(20, ends=True)
    assert told(broker)[-1]["state"] == "ended"


def test_what_spark_does_not_show_is_not_reported_and_harms_no_other_query(broker: Broker) -> None:
    ready(broker)
    sender = ProgressSender(interval=0)
    given = options(broker.http_address)
    for run_id, plan in {
        "gone": None,
        "broken": object(),
        "another kind": Plan(given, kind="LocalRelation"),
        "another source": Plan(given, source="kafka"),
        "bad options": Plan({**given, "channel": ""}),
    }.items():
        sender.start(run_id, fields(run_id), plan)
        sender.progress(run_id, batch(0))
        sender.end(run_id, "")
    sender.start("r", fields("r"), Plan(given))
    sender.progress("r", "no JSON")
    assert sender.wait(20)
    sender.progress("r", batch(3))
    assert sender.wait(20)
    assert [(each["run_id"], each["batch"]) for each in told(broker)] == [("r", 3)]


def test_an_nsqd_without_the_channel_or_the_route_is_passed_over(
    broker: Broker, other: Broker, tmp_path: Path
) -> None:
    ready(broker)
    other.publish("t", numbered(1))  # and no channel
    sender = ProgressSender()
    sender.start("r", fields("r"), Plan(options(other.http_address, broker.http_address)))
    sender.end("r", "Traceback\nValueError: wrong \x1b[31m\x00\n")
    assert sender.wait(20, ends=True)
    (report,) = told(broker)
    assert (report["state"], report["error"][:12]) == ("failed", "wrong  [31m ")
    assert told(other) == []
