"""`archive` into tables, read without Spark; and killed in the midst of commits."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nsquark.cli.flags import StartError
from nsquark.pipeline.running.queries import QueryFailed
from tests.pipeline.command import run, wait_until_gone
from tests.pipeline.tables import KINDS, flags_of, open_iceberg, rows_in
from tests.spark.broker import Broker, numbered
from tests.spark.test_exactly_once import Driver, descendants, finish

DRIVER = Path(__file__).parents[1] / "tables_driver.py"
ROUNDS = max(1, int(os.environ.get("NSQUARK_SPARK_ROUNDS", "2")) // 3)


def archive(spark: SparkSession, broker: Broker, kind: str, folder: Path, *flags: str) -> int:
    arguments = (f"--nsqd-http-address={broker.http_address}", "--trigger=once", *flags_of(kind, folder))
    return int(run(spark, "archive", *arguments, *flags))


@pytest.mark.xdist_group("pipeline")
@pytest.mark.timeout(300)  # it may be the first one of a session
@pytest.mark.parametrize("kind", KINDS)
def test_topics_become_a_table(spark: SparkSession, broker: Broker, tmp_path: Path, kind: str) -> None:
    long = "a.topic.whose.name.is.longer.than.the.bounds.in.some.statistics"
    broker.publish("t", numbered(100))
    broker.publish(long, numbered(10, 100))
    topics = ("--topic=t", f"--topic={long}", "--format-opt=compression=zstd")
    assert archive(spark, broker, kind, tmp_path, *topics) == 110
    for row in rows_in(kind, tmp_path):
        number = int(row["value"].split()[1])
        assert row["topic"] == ("t" if number < 100 else long)
        assert row["offset"] == number % 100
        assert row["nsqd"] == broker.tcp_address
        assert len(row["id"]) == 16
        if kind != "iceberg":  # its partitions are no columns
            assert str(row["date"]) == row["timestamp"].strftime("%Y-%m-%d")
            assert row["hour"] == row["timestamp"].hour
    assert sorted(int(row["value"].split()[1]) for row in rows_in(kind, tmp_path)) == list(range(110))
    assert broker.depth("t", "nsq_to_spark_archive") == 0
    broker.publish("t", numbered(5, 110))
    assert archive(spark, broker, kind, tmp_path, *topics) == 5
    assert sorted(int(row["value"].split()[1]) for row in rows_in(kind, tmp_path)) == list(range(115))
    if kind == "iceberg":
        assert [field.name for field in open_iceberg(tmp_path).spec().fields] == ["topic", "hour"]
        return
    # and back into a topic
    back = ("replay", f"--nsqd-http-address={broker.http_address}", f"--archive={tmp_path / kind}")
    form = "--format=delta" if kind == "delta" else "--format=parquet"
    assert run(spark, *back, form, f"--topic={long}", "--publish=back") == 10
    assert broker.log("back")["next"] == 10


@pytest.mark.xdist_group("pipeline")
def test_a_table_that_cannot_be_opened_is_one_line(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.publish("t", numbered(3))
    nsqd = (f"--nsqd-http-address={broker.http_address}", "--topic=t", f"--checkpoint={tmp_path / 'c'}")
    with pytest.raises(StartError, match=r"^--table: 'n.t' of catalog 'default': "):
        run(spark, "archive", *nsqd, "--format=iceberg", "--table=n.t", "--format-opt=type=nosuch")
    with pytest.raises(StartError, match=r"^--output: 'nosuch://x/y' cannot be opened: "):
        run(spark, "archive", *nsqd, "--manifest", "--output=nosuch://x/y")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    (tmp_path / "delta" / "_delta_log" / "00000000000000000000.json").write_text("{")
    with pytest.raises(QueryFailed, match=r"^the Delta table .* cannot be opened: ") as caught:
        run(spark, "archive", *nsqd, "--format=delta", f"--output={tmp_path / 'delta'}", "--trigger=once")
    assert "\n" not in str(caught.value)


def numbers(kind: str, folder: Path) -> Counter[int]:
    return Counter(int(row["value"]) for row in rows_in(kind, folder))


@pytest.mark.timeout(300 + 300 * ROUNDS)
def test_a_kill_amid_a_commit_leaves_every_message_once(broker: Broker, tmp_path: Path) -> None:
    total = 1200 * (ROUNDS + 1)  # a round takes at most three batches of 200
    broker.ask("POST", "/topic/create?topic=t")
    for kind in KINDS:
        broker.ask("POST", f"/channel/create?topic=t&channel={kind}")
    broker.publish("t", [b"%d" % number for number in range(total)])
    for victim in KINDS * ROUNDS:
        kill_amid_a_commit(broker, tmp_path, victim)
        found = numbers(victim, tmp_path)
        assert max(found.values()) == 1
        assert 400 <= len(found) < total
    finish(broker.http_address, tmp_path, DRIVER)
    for kind in KINDS:
        assert numbers(kind, tmp_path) == Counter(range(total)), kind
        assert broker.depth("t", kind) == 0


def kill_amid_a_commit(broker: Broker, folder: Path, victim: str) -> None:
    """It may take more than one: on a busy machine Spark may give up waiting for its own processes."""
    for _ in range(3):
        driver = Driver(broker.http_address, folder, victim, DRIVER)
        family: list[int] = []
        try:
            if driver.wait_for_batches(1):
                family = descendants(driver.process.pid)
            if driver.process.wait(150) == -signal.SIGKILL:
                return
        finally:
            for pid in family:  # the JVM would find out by itself, in a while
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            driver.kill()
            wait_until_gone(family)
    raise AssertionError((folder / "stderr").read_text())
