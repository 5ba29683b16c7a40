"""The sink on a real Spark: batches and streams into topics, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.daemon import Nsqlookupd
from tests.spark.broker import Broker, numbered

pytestmark = pytest.mark.xdist_group("spark")

NOBODY = "127.0.0.1:1"


def rows(spark: SparkSession, count: int, *columns: str) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr("concat('message ', id) AS value", *columns)


def save(frame: DataFrame, address: str, mode: str = "append", **options: str) -> None:
    given = {"nsqd.http.addresses": address, **options}
    frame.write.format("nsq").options(**given).mode(mode).save()


def values(spark: SparkSession, broker: Broker, topic: str) -> list[bytes]:
    reader = spark.read.format("nsq").option("nsqd.http.addresses", broker.http_address)
    found = reader.option("subscribe", topic).load().select("value").collect()
    return sorted(bytes(row["value"]) for row in found)


BOTH = pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])


@BOTH
def test_rows_become_messages_of_their_topics(spark: SparkSession, broker: Broker, delivery: str) -> None:
    frame = rows(spark, 3000, "concat('t', id % 3) AS topic")
    save(frame, broker.http_address, deliveryMode=delivery, bodyBytes="2000")
    for rest in range(3):
        expected = sorted(b"message %d" % number for number in range(rest, 3000, 3))
        assert values(spark, broker, f"t{rest}") == expected


@BOTH
def test_deferred_rows_wait(spark: SparkSession, broker: Broker, delivery: str) -> None:
    frame = rows(spark, 100, "IF(id % 4 = 0, 600000 + id, NULL) AS defer")
    save(frame, broker.http_address, deliveryMode=delivery, topic="t")
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    (topic,) = broker.ask("GET", "/stats?format=json&topic=t")["topics"]
    (channel,) = topic["channels"]
    assert (channel["depth"], channel["deferred_count"]) == (75, 25)


@BOTH
def test_a_stream_is_written(spark: SparkSession, broker: Broker, tmp_path: Path, delivery: str) -> None:
    broker.publish("in", numbered(1000))
    source = {"subscribe": "in", "channel": "c", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    reader = spark.readStream.format("nsq").option("nsqd.http.addresses", broker.http_address)
    frame = reader.options(**source).load().select("value")
    given = {
        "nsqd.http.addresses": broker.http_address,
        "topic": "out",
        "deliveryMode": delivery,
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    query = frame.writeStream.format("nsq").options(**given).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert values(spark, broker, "out") == sorted(numbered(1000))
    if delivery == "exactlyOnce":
        (app,) = broker.ask("GET", "/staged")["apps"]
        assert app["app"] == query.id
        assert app["last_batch"] == query.lastProgress["batchId"]


def test_a_write_that_is_repeated_by_its_version_is_known(spark: SparkSession, broker: Broker) -> None:
    given = {"deliveryMode": "exactlyOnce", "topic": "t", "txnAppId": "nightly"}
    for version in ("7", "7", "8", "7"):
        save(rows(spark, 100), broker.http_address, txnVersion=version, **given)
    assert broker.log("t")["next"] == 200
    # without a name, every write is another one
    save(rows(spark, 100), broker.http_address, deliveryMode="exactlyOnce", topic="t")
    assert broker.log("t")["next"] == 300


def test_an_nsqd_that_is_away_is_passed_over(spark: SparkSession, broker: Broker) -> None:
    frame = rows(spark, 100)
    given = {"nsqd.tcp.addresses": f"{NOBODY},{broker.tcp_address}", "topic": "t"}
    frame.write.format("nsq").options(**given).mode("append").save()
    assert broker.log("t")["next"] == 100


def test_no_rows_are_no_messages(spark: SparkSession, broker: Broker) -> None:
    for delivery in ("atLeastOnce", "exactlyOnce"):
        save(rows(spark, 0), broker.http_address, topic="t", deliveryMode=delivery)
    assert broker.ask("GET", "/stats?format=json")["topics"] == []


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ((), {}, "option 'topic': missing, and there is no column 'topic' either"),
        (("id",), {"topic": "t"}, "column 'id': a sink takes value, topic, defer"),
        ((), {"topic": "t", "mode": "overwrite"}, "option 'mode': a topic can be appended to"),
        ((), {"topic": "t", "deliveryMode": "exactlyOnce", "txnAppId": "a"}, "option 'txnVersion': missing"),
        (("CAST(NULL AS STRING) AS topic",), {}, "column 'topic': is null in"),
        (("-5 AS defer",), {"topic": "t"}, "column 'defer': -5 ms is negative"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession, broker: Broker, columns: tuple[str, ...], options: dict[str, str], problem: str
) -> None:
    frame = rows(spark, 10, *columns)
    with pytest.raises(PySparkException) as found:
        save(frame, broker.http_address, **options)
    assert any(problem in line for line in str(found.value).splitlines())


def test_exactly_once_needs_an_nsqd_that_can(spark: SparkSession) -> None:
    with Nsqlookupd().start() as stranger, pytest.raises(AnalysisException) as found:
        save(rows(spark, 10), stranger.http_address, topic="t", deliveryMode="exactlyOnce")
    assert "option 'deliveryMode': exactlyOnce needs nsquark's nsqd, and http://" in str(found.value)


def test_nobody_there_is_said(spark: SparkSession) -> None:
    patience = {"publish.numRetries": "1", "publish.retryIntervalMs": "1"}
    for delivery in ("atLeastOnce", "exactlyOnce"):
        with pytest.raises(PySparkException, match=r"http://127\.0\.0\.1:1 cannot be reached"):
            save(rows(spark, 10), NOBODY, topic="t", deliveryMode=delivery, **patience)


def test_a_stream_whose_rows_are_no_messages_fails(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("in", numbered(10))
    source: dict[str, Any] = {"subscribe": "in", "channel": "c", "startingOffsets": "earliest"}
    reader = spark.readStream.format("nsq").option("nsqd.http.addresses", broker.http_address)
    frame = reader.options(**source).load().selectExpr("CAST(NULL AS BINARY) AS value")
    given = {
        "nsqd.http.addresses": broker.http_address,
        "topic": "out",
        "deliveryMode": "exactlyOnce",
        "checkpointLocation": str(tmp_path),
    }
    query = frame.writeStream.format("nsq").options(**given).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="column 'value': is null in 10 rows"):
        query.awaitTermination(100)
