"""`replay` of an archive and of a log into topics of a real nsqd."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from nsquark.cli.flags import StartError
from nsquark.pipeline.running.queries import StopSignal
from tests.daemon import Nsqlookupd
from tests.pipeline.command import run
from tests.spark.broker import Broker, numbered

pytestmark = pytest.mark.xdist_group("pipeline")


def bodies(spark: SparkSession, broker: Broker, topic: str) -> list[bytes]:
    """In the order of the log."""
    given = {"nsqd.http.addresses": broker.http_address, "subscribe": topic}
    rows = spark.read.format("nsq").options(**given).load().orderBy("offset").collect()
    return [bytes(row["value"]) for row in rows]


def replay(spark: SparkSession, broker: Broker, *flags: str, stop: StopSignal | None = None) -> Any:
    return run(spark, "replay", f"--nsqd-http-address={broker.http_address}", *flags, stop=stop)


def test_an_archive_goes_back_into_a_topic_in_its_order(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    for first in range(0, 100, 10):
        broker.publish("t", numbered(10, first))
    broker.publish("u", [b"another"])
    where = (f"--nsqd-http-address={broker.http_address}", f"--output={tmp_path / 'out'}")
    run(spark, "archive", *where, "--trigger=once", "--topic=t", "--topic=u")
    archive = f"--archive={tmp_path / 'out'}"
    assert replay(spark, broker, archive, "--topic=t", "--publish=back") == 100
    assert bodies(spark, broker, "back") == numbered(100)
    # with a checkpoint, a second start has nothing left to do
    flags = (archive, "--original-topics", f"--checkpoint={tmp_path / 'c'}")
    assert replay(spark, broker, *flags) == 101
    assert replay(spark, broker, *flags) == 101
    assert bodies(spark, broker, "t") == numbered(100) * 2
    assert bodies(spark, broker, "u") == [b"another"] * 2


def test_a_range_of_a_log_is_replayed_at_a_rate(spark: SparkSession, broker: Broker) -> None:
    broker.publish("t", numbered(100))
    name = broker.tcp_address
    begun = time.monotonic()
    replay(
        spark, broker, "--topic=t", "--publish=back", "--rate=20",
        f'--starting-offsets={{"t": {{"{name}": 10}}}}', f'--ending-offsets={{"t": {{"{name}": 40}}}}',
    )  # fmt: skip
    assert time.monotonic() - begun >= 1.4
    assert bodies(spark, broker, "back") == numbered(30, 10)
    times = broker.ask("GET", "/topic/peek?topic=back&limit=100")["messages"]
    spread = (times[-1]["timestamp"] - times[0]["timestamp"]) / 1e9
    assert spread >= 1.3


def test_times_select_and_a_stop_can_be_resumed(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    time.sleep(0.01)
    between = time.time_ns() // 1_000_000
    time.sleep(0.01)
    broker.publish("t", numbered(10, 10))
    flags = (
        "--topic=t",
        "--publish=back",
        f"--starting-timestamp={between}",
        f"--checkpoint={tmp_path / 'c'}",
    )
    stop = StopSignal()
    stop.set()
    assert replay(spark, broker, *flags, stop=stop) == 0
    assert replay(spark, broker, *flags) == 10
    assert bodies(spark, broker, "back") == numbered(10, 10)


def test_it_is_exact_over_several_nsqds_and_says_where_it_cannot_be(
    spark: SparkSession, broker: Broker, other: Broker
) -> None:
    broker.publish("t", numbered(10))
    exactly = ("--topic=t", "--publish=back", "--publish-delivery=exactly-once")
    two = (
        f"--publish-nsqd-http-address={broker.http_address}",
        f"--publish-nsqd-http-address={other.http_address}",
    )
    assert replay(spark, broker, *exactly, *two) == 10
    assert sum(each.log("back")["next"] for each in (broker, other) if has(each, "back")) == 10
    with Nsqlookupd().start() as stranger:
        no_nsqd = f"--publish-nsqd-http-address={stranger.http_address}"
        with pytest.raises(StartError, match=r"^--publish-delivery: exactlyOnce needs nsquark's nsqd"):
            replay(spark, broker, *exactly, no_nsqd)


def has(broker: Broker, topic: str) -> bool:
    return topic in {each["topic_name"] for each in broker.ask("GET", "/stats?format=json")["topics"]}
