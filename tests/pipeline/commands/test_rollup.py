"""`rollup` on a real Spark: windows of a topic, to files and to a topic."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsquark.pipeline.commands.rollup import schema
from nsquark.pipeline.topics.retries import CounterWatcher
from nsquark.spark.source.options import parse_stream_options
from tests.daemon import Client, until
from tests.pipeline.command import rows_of, run
from tests.pipeline.commands.test_replay import bodies
from tests.spark.broker import Broker, numbered

pytestmark = pytest.mark.xdist_group("pipeline")


def test_windows_are_counted_once_they_are_over(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    flags = (
        f"--nsqd-http-address={broker.http_address}", "--topic=t", "--trigger=once", "--window=1s",
        "--watermark=0s", "--percentile=0.5,0.999", f"--output={tmp_path / 'out'}", "--publish=rates",
    )  # fmt: skip
    broker.publish("t", numbered(100))
    time.sleep(1.1)  # the window is a second of nsqd's own clock
    broker.publish("t", [b"later"])
    assert run(spark, "rollup", *flags) == 101
    rows = rows_of(tmp_path / "out")
    assert sum(row["messages"] for row in rows) >= 100
    assert sum(row["messages"] for row in rows if row["messages"] != 1) == 100
    for row in rows:
        assert (row["window_end"] - row["window_start"]).total_seconds() == 1
        assert row["topic"] == "t"
        assert row["rate"] == row["messages"]
        assert 0 <= row["latency_ms_p50"] <= row["latency_ms_p99_9"]
        assert row["retry_share"] is None  # it was not looked at before
    assert sum(row["bytes"] for row in rows if row["messages"] != 1) == sum(map(len, numbered(100)))
    published = [json.loads(body) for body in bodies(spark, broker, "rates")]
    assert [each["messages"] for each in published] == [row["messages"] for row in rows]
    assert published[0]["topic"] == "t"
    # the same windows are not published again
    run(spark, "rollup", *flags)
    assert len(bodies(spark, broker, "rates")) == len(rows_of(tmp_path / "out")) == len(rows)


def test_percentiles_name_their_columns() -> None:
    assert schema([0.5, 0.999]).names[-3:] == ["latency_ms_p50", "latency_ms_p99_9", "retry_share"]


async def test_retries_are_seen_in_nsqds_counters(broker: Broker) -> None:
    """Of ten messages five are given back once, and so there are fifteen deliveries."""
    broker.ask("POST", "/topic/create?topic=t")
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "channel": "q"}
    with CounterWatcher(parse_stream_options(given), 0.02, 60.0, time.time) as watcher:
        begin = await snapshot_taken(watcher)
        broker.publish("t", numbered(10))
        async with await Client.connect(broker.tcp_address) as client:
            await client.sub("t", "c", 10)
            for _ in range(15):
                message = await client.message()
                if message.attempts == 1 and int(message.body.split()[1]) % 2:
                    client.req(message)
                else:
                    client.fin(message)
            await client.caught_up()
        end = await snapshot_taken(watcher)
    assert watcher.history.share("t", begin, end, 0.01) == pytest.approx(5 / 15)


async def snapshot_taken(watcher: CounterWatcher) -> float:
    """The time of a snapshot that was begun after this call."""
    snapshots = watcher.history._snapshots
    seen = len(snapshots)
    await until(lambda: len(snapshots) >= seen + 2)
    return snapshots[-1][0]
