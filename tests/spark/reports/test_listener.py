"""Real queries report to a real nsqd."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from nsquark.spark import report_progress
from nsquark.spark.reports import ProgressListener
from tests.spark.broker import Broker, numbered
from tests.spark.test_queries import run, stream

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def listener(spark: SparkSession) -> Iterator[ProgressListener]:
    listener = report_progress(spark)
    assert report_progress(spark) is listener
    yield listener
    spark.streams.removeListener(listener)


def reports(broker: Broker, channel: str = "q") -> dict[str, Any]:
    channels = broker.ask("GET", f"/channel/reports?channel={channel}")["channels"]
    found: dict[str, Any] = channels[0] if channels else {"reports": [], "last_error": None}
    return found


def last(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = (reports(broker)["reports"] or [{}])[-1]
    return found


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_query_tells_its_progress_its_lag_and_its_end(
    spark: SparkSession, broker: Broker, tmp_path: Path, listener: ProgressListener
) -> None:
    broker.publish("t", numbered(25))
    goes_on = threading.Event()

    def take(rows: DataFrame, batch: int) -> None:
        rows.count()
        if batch:
            assert goes_on.wait(60)

    # a table of the catalog reports as well as a source with options
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": "t", "channel": "q"}
    spark.catalog.createTable("reported", source="nsq", **given, startingOffsets="earliest")
    frame = spark.readStream.option("maxOffsetsPerTrigger", "10").table("reported")
    writer = frame.writeStream.queryName("pages").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(take).start()
    try:
        until(lambda: last(broker).get("batch") == 0)
        first = last(broker)
        assert (first["query_id"], first["run_id"]) == (str(query.id), str(query.runId))
        assert (first["query_name"], first["state"], first["error"]) == ("pages", "running", None)
        assert (first["rows"], first["lag_messages"]) == (10, 15)
        assert (first["log_rows"], first["log_lag_messages"]) == (10, 15)
        assert first["log_rate"] > 0
        assert 0 < first["lag_seconds"] < 600
        assert first["batch_ms"] > 0
        assert first["sink"] == "ForeachBatchSink"
        assert first["ui_url"] is None  # the session of the tests has no UI
        assert abs(first["timestamp_ms"] / 1000 - time.time()) < 600
        goes_on.set()
        until(lambda: last(broker).get("batch") == 2)
        third = last(broker)
        assert (third["rows"], third["lag_messages"], third["lag_seconds"]) == (5, 0, 0)
    finally:
        goes_on.set()
        query.stop()
        spark.sql("DROP TABLE reported")
    assert listener.wait(20, ends=True)
    ended = last(broker)
    assert (ended["state"], ended["batch"], ended["error"]) == ("ended", 2, None)
    (channel,) = broker.ask("GET", "/stats?format=json&topic=t")["topics"][0]["channels"]
    assert (channel["pipeline"]["query_name"], channel["pipeline"]["state"]) == ("pages", "ended")


def test_a_query_that_fails_tells_why_and_one_that_reads_nothing_of_nsq_tells_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path, listener: ProgressListener
) -> None:
    broker.publish("t", numbered(3))

    def refuse(_rows: DataFrame, _batch: int) -> None:
        raise ValueError("no such <thing>")

    with pytest.raises(StreamingQueryException):
        run(stream(spark, broker), tmp_path / "refused", refuse)
    rates = spark.readStream.format("rate").load().writeStream.format("noop")
    rates.option("checkpointLocation", str(tmp_path / "rates")).trigger(once=True).start().awaitTermination(
        60
    )
    assert listener.wait(20, ends=True)
    (failed,) = reports(broker)["reports"]
    assert (failed["state"], failed["batch"]) == ("failed", None)
    assert failed["error"].startswith("no such <thing>\n")
    assert reports(broker)["last_error"] == failed
    # the same checkpoint once more, without the fault
    run(stream(spark, broker), tmp_path / "refused", lambda _rows, _batch: None)
    assert listener.wait(20, ends=True)
    assert last(broker)["state"] == "ended"
    assert last(broker)["query_id"] == failed["query_id"]
    assert reports(broker)["last_error"] == failed
