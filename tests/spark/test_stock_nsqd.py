"""Source and sink against NSQ's own nsqd, where `NSQUARK_GO_NSQD` names its program.

NSQUARK_GO_NSQD=PATH pytest tests/spark/test_stock_nsqd.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.security.certificates import Authority
from tests.spark.broker import Broker, numbered

PROGRAM = os.environ.get("NSQUARK_GO_NSQD", "")
pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(not PROGRAM, reason="NSQUARK_GO_NSQD says where NSQ's nsqd is"),
]


class StockNsqd(Broker):
    def __init__(self, data_path: Path, *flags: str) -> None:
        super().__init__(data_path, *flags)
        self.program = [PROGRAM]

    def counts(self, topic: str, channel: str) -> tuple[int, int]:
        """Depth and deferred messages of a channel."""
        (told,) = self.ask("GET", f"/stats?format=json&topic={topic}")["topics"]
        (found,) = [each for each in told["channels"] if each["channel_name"] == channel]
        return found["depth"], found["deferred_count"]


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[StockNsqd]:
    with StockNsqd(tmp_path / "data") as nsqd:
        nsqd.start()
        yield nsqd


def frame(spark: SparkSession, count: int, *columns: str) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr("concat('message ', id) AS value", *columns)


def test_rows_are_published(spark: SparkSession, stock: StockNsqd) -> None:
    for topic in ("t0", "t1"):
        stock.ask("POST", f"/topic/create?topic={topic}")
        stock.ask("POST", f"/channel/create?topic={topic}&channel=c")
    rows = frame(
        spark, 5000, "concat('t', id % 2) AS topic", "IF(id % 4 = 0, 600000 + id % 100, NULL) AS defer"
    )
    for where in (
        {"nsqd.tcp.addresses": stock.tcp_address},
        {"nsqd.http.addresses": stock.http_address},
    ):
        rows.write.format("nsq").options(**where, bodyBytes="3000").mode("append").save()
    assert stock.counts("t0", "c") == (2500, 2500)
    assert stock.counts("t1", "c") == (5000, 0)


def test_exactly_once_is_refused(spark: SparkSession, stock: StockNsqd) -> None:
    for where in (
        {"nsqd.tcp.addresses": stock.tcp_address},
        {"nsqd.http.addresses": stock.http_address},
    ):
        with pytest.raises(
            AnalysisException, match=r"option 'deliveryMode': exactlyOnce needs nsquark's nsqd"
        ):
            frame(spark, 10).write.format("nsq").options(**where, topic="t", deliveryMode="exactlyOnce").mode(
                "append"
            ).save()


def test_rows_are_published_over_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    with StockNsqd(
        tmp_path / "data", f"--tls-cert={certificate}", f"--tls-key={key}", "--tls-required=tcp-https"
    ) as nsqd:
        nsqd.flags += ("--https-address=127.0.0.1:0",)
        nsqd.start()
        nsqd.ask("POST", "/topic/create?topic=t")
        nsqd.ask("POST", "/channel/create?topic=t&channel=c")
        given = {"nsqd.tcp.addresses": nsqd.tcp_address, "topic": "t", "tls.caFile": str(authority.file)}
        frame(spark, 1000).write.format("nsq").options(**given).mode("append").save()
        assert nsqd.counts("t", "c") == (1000, 0)


def test_a_topic_is_consumed_and_spooled(spark: SparkSession, stock: StockNsqd, tmp_path: Path) -> None:
    stock.ask("POST", "/topic/create?topic=t")
    stock.ask("POST", "/channel/create?topic=t&channel=archive")
    given = {"nsqd.http.addresses": stock.http_address, "subscribe": "t", "channel": "archive"}

    def run(**more: str) -> None:
        stream = spark.readStream.format("nsq").options(**given, **more).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(100)

    with pytest.raises(StreamingQueryException, match="option 'stagingDirectory': missing"):
        run()
    for first in (0, 500):
        stock.publish("t", numbered(500, first))
        run(stagingDirectory=str(tmp_path / "spool"))
    rows = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert sorted(bytes(row["value"]) for row in rows) == sorted(numbered(1000))
    assert stock.counts("t", "archive")[0] == 0
    with pytest.raises(AnalysisException, match=r"option 'subscribe': nsqd .* has no log to read"):
        spark.read.format("nsq").options(
            **{"nsqd.http.addresses": stock.http_address, "subscribe": "t"}
        ).load().collect()
