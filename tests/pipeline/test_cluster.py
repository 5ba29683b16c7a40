"""The same command on a standalone master and two workers, each a process, without nsquark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.command import Command, rows_of
from tests.spark.broker import Broker, numbered
from tests.spark.cluster import Cluster, small_environment
from tests.spark.session import QUICK_START


@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(400)
def test_an_archive_is_written_by_a_cluster(broker: Broker, spark_cluster: Cluster, tmp_path: Path) -> None:
    broker.publish("t", numbered(2000))
    shipped = small_environment(tmp_path / "env.tar.gz")
    one, two = spark_cluster.executors()
    flags = (
        f"--master={spark_cluster.url}", f"--nsqd-http-address={broker.http_address}", "--topic=t",
        f"--output={tmp_path / 'out'}", "--trigger=once", "--min-partitions=2", f"--ship={shipped}",
        "--conf=spark.executor.memory=512m", f"--conf=spark.executor.extraJavaOptions={QUICK_START}",
    )  # fmt: skip
    with Command("archive", *flags, SPARK_LOCAL_IP="127.0.0.1") as command:
        assert command.wait(300) == 0, command.stderr
    assert sorted(row["value"] for row in rows_of(tmp_path / "out")) == sorted(numbered(2000))
    # both workers had something to do
    assert spark_cluster.executors() == [one + 1, two + 1]
    assert broker.depth("t", "nsq_to_spark_archive") == 0
