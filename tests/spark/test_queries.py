"""Queries on a real Spark: streams and tables of topics, and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.broker import Broker, numbered

pytestmark = pytest.mark.xdist_group("spark")


def table(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    reader = spark.read.format("nsq").options(
        **{"nsqd.http.addresses": broker.http_address, "subscribe": "t", **options}
    )
    return reader.load()


def stream(spark: SparkSession, broker: Broker, schema: str = "", **options: str) -> DataFrame:
    given = {
        "nsqd.http.addresses": broker.http_address,
        "subscribe": "t",
        "channel": "q",
        "startingOffsets": "earliest",
        **options,
    }
    reader = spark.readStream.format("nsq").options(**given)
    return (reader.schema(schema) if schema else reader).load()


def run(frame: DataFrame, path: Path, then: Callable[[DataFrame, int], None] | None = None) -> StreamingQuery:
    """Read all messages, into Parquet files in `path`/out or into a function."""
    writer = frame.writeStream.option("checkpointLocation", str(path / "checkpoint"))
    if then is not None:
        writer = writer.foreachBatch(then)
    else:
        writer = writer.format("parquet").option("path", str(path / "out"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    return query


def values(frame: DataFrame) -> list[bytes]:
    return sorted((bytes(row["value"]) for row in frame.select("value").collect()), key=_number)


def _number(value: bytes) -> int:
    return int(value.split()[1])


# ---- tables


def test_a_topic_is_a_table(spark: SparkSession, broker: Broker) -> None:
    broker.publish("t", numbered(100))
    rows = table(spark, broker, minPartitions="2").orderBy("offset").collect()
    assert [bytes(row["value"]) for row in rows] == numbered(100)
    assert [row["offset"] for row in rows] == list(range(100))
    assert {(row["topic"], row["nsqd"]) for row in rows} == {("t", f"127.0.0.1:{broker.tcp_port}")}
    assert len({row["id"] for row in rows}) == 100
    assert rows[0].asDict().keys() == {"value", "topic", "nsqd", "offset", "timestamp", "id"}


def test_a_schema_selects_columns_and_text(spark: SparkSession, broker: Broker) -> None:
    broker.publish("t", [b"plain", "gr\u00fcn".encode(), b"\xff\xfe"])
    reader = spark.read.format("nsq").options(
        **{"nsqd.http.addresses": broker.http_address, "subscribe": "t"}
    )
    frame = reader.schema("offset BIGINT, value STRING").load().orderBy("offset")
    assert frame.collect()[:2] == [Row(offset=0, value="plain"), Row(offset=1, value="gr\u00fcn")]
    # what is no UTF-8 is what CAST(value AS STRING) makes of it
    whole = reader.schema("value BINARY").load()
    mine = frame.select(f.hex("value").alias("x")).collect()
    theirs = whole.select(f.hex(f.col("value").cast("string")).alias("x")).collect()
    assert sorted(row["x"] for row in mine) == sorted(row["x"] for row in theirs)


def test_filters_are_pushed_down(spark: SparkSession, broker: Broker) -> None:
    broker.publish("t", numbered(100))
    times = table(spark, broker).select("timestamp").first()
    assert times is not None
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        whole = table(spark, broker)
        assert (whole.where("offset = 7").count(), whole.count()) == (1, 100)
        frame = table(spark, broker, filterPushdown="true")
        assert values(frame.where("offset >= 10 AND offset < 13")) == numbered(3, 10)
        assert values(frame.where("offset = 7 AND topic = 't'")) == numbered(1, 7)
        assert frame.where("topic = 'another'").count() == 0
        assert frame.where(f.col("timestamp") >= times["timestamp"]).count() == 100
        assert frame.where(f.col("timestamp") < times["timestamp"] - timedelta(hours=1)).count() == 0
        # whatever the session's time zone is
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        assert frame.where("timestamp > current_timestamp() - INTERVAL 1 HOUR").count() == 100
        assert frame.where("timestamp > current_timestamp() + INTERVAL 1 HOUR").count() == 0
        assert frame.where("timestamp < current_timestamp() + INTERVAL 1 HOUR").count() == 100
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# ---- streams


def test_available_now_reads_everything_in_limited_batches(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("t", numbered(25))
    query = run(stream(spark, broker, maxOffsetsPerTrigger="10"), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress] == [10, 10, 5]
    (source,) = query.recentProgress[0].sources
    ((_, latest),) = json.loads(source.latestOffset)["t"].items()
    ((_, end),) = json.loads(source.endOffset)["t"].items()
    assert (latest["offset"], end["offset"]) == (25, 10)
    assert broker.depth("t", "q") == 0
    broker.publish("t", numbered(5, 25))
    run(stream(spark, broker), tmp_path)
    assert values(spark.read.parquet(str(tmp_path / "out"))) == numbered(30)
    assert broker.depth("t", "q") == 0


def test_a_query_goes_on_over_a_restart_of_nsqd(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(5))
    frame = stream(spark, broker, requestTimeoutMs="1000")
    query = (
        frame.writeStream.format("memory")
        .queryName("restarts")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
        broker.kill()
        broker.restart()
        broker.publish("t", numbered(5, 5))
        query.processAllAvailable()
        assert values(spark.table("restarts")) == numbered(10)
        other = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other")).start()
        with pytest.raises(StreamingQueryException, match="option 'channel': 'q' of topic 't'"):
            other.awaitTermination(60)
    finally:
        query.stop()
    run(frame, tmp_path / "third")  # the channel is free again


def test_a_query_follows_its_channel(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """An operator seeks the channel of a live query, and empties that of a stopped one."""
    broker.publish("t", numbered(10))
    seen: list[bytes] = []
    writer = stream(spark, broker).writeStream.option("checkpointLocation", str(tmp_path))
    writer = writer.foreachBatch(lambda batch, _: seen.extend(values(batch)))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        broker.ask("POST", "/channel/seek?topic=t&channel=q&to=7")
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == numbered(10) + numbered(3, 7)
    broker.publish("t", numbered(400, 10))
    broker.ask("POST", "/channel/empty?topic=t&channel=q")
    broker.publish("t", numbered(5, 410))
    seen.clear()
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    assert seen == numbered(5, 410)
    assert broker.depth("t", "q") == 0


def test_spark_refuses_a_trigger_in_real_time(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """When this fails, Spark can do it, and the documentation has to say so."""
    broker.publish("t", numbered(1))
    writer = stream(spark, broker).writeStream.foreach(lambda row: None).outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(realTime="5 minutes")
    refusal = r"STREAMING_REAL_TIME_MODE\.INPUT_STREAM_NOT_SUPPORTED"
    with pytest.raises(PySparkException, match=refusal):
        writer.start().awaitTermination(100)


def test_foreach_batch_join_and_window(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    events = [json.dumps({"user": number % 3, "spent": number}).encode() for number in range(30)]
    broker.publish("t", events)
    users = spark.createDataFrame([(0, "ann"), (1, "bob")], "user INT, name STRING")
    parsed = (
        stream(spark, broker, "value STRING, timestamp TIMESTAMP")
        .select(f.from_json("value", "user INT, spent INT").alias("event"), "timestamp")
        .select("event.*", "timestamp")
        .join(users, "user")
        .withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 day"), "name")
        .agg(f.sum("spent").alias("spent"))
    )
    seen: dict[str, int] = {}

    def take(batch: DataFrame, _: int) -> None:
        for row in batch.collect():
            seen[row["name"]] = seen.get(row["name"], 0) + row["spent"]

    writer = parsed.writeStream.outputMode("update").foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert seen == {"ann": sum(range(0, 30, 3)), "bob": sum(range(1, 30, 3))}


def test_two_topics_are_joined(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    broker.publish("u", numbered(5, 3))
    left = stream(spark, broker, "value STRING, id STRING")
    right = stream(spark, broker, "value STRING, id STRING", subscribe="u")
    found: list[str] = []
    run(
        left.alias("l").join(right.alias("r"), f.expr("l.value = r.value")).select("l.value"),
        tmp_path,
        lambda batch, _: found.extend(row["value"] for row in batch.collect()),
    )
    assert sorted(found) == [value.decode() for value in numbered(5, 3)]


def test_several_topics_from_several_nsqds(
    spark: SparkSession, broker: Broker, other: Broker, tmp_path: Path
) -> None:
    broker.publish("t.a", numbered(10))
    other.publish("t.a", numbered(10, 10))
    other.publish("t.b", numbered(10, 20))
    addresses = f"{broker.http_address},{other.http_address}"
    run(stream(spark, broker, subscribe="t.*", **{"nsqd.http.addresses": addresses}), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert values(rows) == numbered(30)
    counted = {
        (row["topic"], row["nsqd"]): row["count"] for row in rows.groupBy("topic", "nsqd").count().collect()
    }
    here, there = f"127.0.0.1:{broker.tcp_port}", f"127.0.0.1:{other.tcp_port}"
    assert counted == {("t.a", here): 10, ("t.a", there): 10, ("t.b", there): 10}


# ---- what is wrong


def test_a_wrong_option_is_told_at_load(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(AnalysisException, match="option 'maxOffsetPerTrigger': unknown; did you mean"):
        stream(spark, broker, maxOffsetPerTrigger="5")
    with pytest.raises(AnalysisException, match=r"option 'nsqd.http.addresses': missing"):
        spark.read.format("nsq").load()


def test_a_wrong_value_is_told_at_start(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="option 'startingOffsets': 'noon' is neither"):
        run(stream(spark, broker, startingOffsets="noon"), tmp_path)
    with pytest.raises(AnalysisException, match="option 'minPartitions': 'x' is not a number"):
        table(spark, broker, minPartitions="x").collect()


def test_an_unknown_topic_or_nsqd_is_told(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    where = f"127.0.0.1:{broker.tcp_port}"
    with pytest.raises(StreamingQueryException, match=f"option 'subscribe': no topic 't' at {where}"):
        run(stream(spark, broker), tmp_path)
    with pytest.raises(AnalysisException, match=f"option 'subscribe': no topic 't' at {where}"):
        table(spark, broker).collect()
    address = broker.http_address
    broker.kill()
    with pytest.raises(AnalysisException, match=f"http://{address} cannot be reached"):
        table(spark, broker).collect()


def test_lost_data_fails_the_query(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(5))
    run(stream(spark, broker), tmp_path)
    broker.ask("POST", "/topic/delete?topic=t")
    broker.publish("t", numbered(5, 5))
    with pytest.raises(
        StreamingQueryException, match=r"offsets 5 are to be read, but the log has \[\d+, \d+\)"
    ):
        run(stream(spark, broker), tmp_path)
    run(stream(spark, broker, failOnDataLoss="false"), tmp_path)
    assert values(spark.read.parquet(str(tmp_path / "out"))) == numbered(10)
