"""`archive` on a real Spark and a real nsqd, read without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsquark.cli.flags import StartError
from nsquark.pipeline.output.exact_files import ExactFiles
from nsquark.pipeline.running.queries import QueryFailed
from tests.pipeline.command import rows_of, run
from tests.spark.broker import Broker, numbered

pytestmark = pytest.mark.xdist_group("pipeline")


def archive(spark: SparkSession, broker: Broker, out: Path, *flags: str) -> int:
    where = (f"--nsqd-http-address={broker.http_address}", f"--output={out}")
    return int(run(spark, "archive", *where, "--trigger=once", *flags))


def values(out: Path) -> list[bytes]:
    return sorted((row["value"] for row in rows_of(out)), key=lambda value: int(value.split()[1]))


def test_topics_become_files_by_topic_date_and_hour(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    broker.publish("t", numbered(100))
    broker.publish("u", numbered(10, 100))
    before = datetime.now(UTC)
    progress = tmp_path / "progress"
    assert archive(spark, broker, out, "--topic=t", "--topic=u", f"--progress-json={progress}") == 110
    assert values(out) == numbered(110)
    for row in rows_of(out):
        assert row["topic"] == ("t" if int(row["value"].split()[1]) < 100 else "u")
        assert row["date"] == row["timestamp"].strftime("%Y-%m-%d")
        assert row["hour"] == row["timestamp"].hour
        assert abs(row["timestamp"] - before).total_seconds() < 300
        assert row["nsqd"] == broker.tcp_address
    assert [json.loads(line)["messages"] for line in progress.read_text().splitlines()] == [110]
    assert broker.depth("t", "nsq_to_spark_archive") == 0
    # as after a crash that came before Spark noted the batch: it is replayed
    for name in ("0", ".0.crc"):
        (tmp_path / "out.checkpoint" / "commits" / name).unlink()
    archive(spark, broker, out, "--topic=t", "--topic=u")
    assert values(out) == numbered(110)
    # a further run goes on where the others were
    broker.publish("t", numbered(5, 110))
    assert archive(spark, broker, out, "--topic=t", "--topic=u") == 5
    assert values(out) == numbered(115)


def test_the_end_of_a_run_merges_what_it_has_written(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    broker.publish("t", numbered(60))
    archive(spark, broker, out, "--topic=t", "--max-offsets-per-trigger=10", "--compact-min-files=3")
    assert values(out) == numbered(60)
    # a new hour may have begun meanwhile
    assert all(len(list(folder.glob("*"))) < 3 for folder in out.glob("topic=t/*/*"))
    assert list(out.rglob("merged-*.snappy.parquet"))


def test_other_formats_hold_text(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    archive(spark, broker, tmp_path / "out", "--topic=t", "--format=json", "--value-type=string")
    lines = [line for path in (tmp_path / "out").rglob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["value"] for line in lines) == [f"message {n}" for n in range(10)]


def test_sparks_own_sink_can_be_had(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    archive(spark, broker, tmp_path / "out", "--topic=t", "--exact-files=false")
    assert (tmp_path / "out" / "_spark_metadata").is_dir()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(bytes(row["value"]) for row in rows) == numbered(10)


def test_two_archives_do_not_share_a_folder(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(1))
    first = ExactFiles(tmp_path / "out", tmp_path / "elsewhere", "parquet")
    first.open()
    with pytest.raises(StartError, match="another process writes to"):
        archive(spark, broker, tmp_path / "out", "--topic=t")
    first.close()


def test_an_unknown_topic_and_an_nsqd_that_is_away_are_one_line(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    with pytest.raises(QueryFailed) as caught:
        archive(spark, broker, tmp_path / "out", "--topic=nosuch")
    assert "'nosuch'" in str(caught.value)
    assert "\n" not in str(caught.value)
    broker.kill()
    with pytest.raises(QueryFailed, match="cannot be reached") as caught:
        archive(spark, broker, tmp_path / "out", "--topic=t", f"--checkpoint={tmp_path / 'c'}")
    assert "\n" not in str(caught.value)
