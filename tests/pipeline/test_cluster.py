"""The same command on a standalone master and two workers, each a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.command import Command, rows_of
from tests.spark.broker import Broker, numbered
from tests.spark.cluster import cluster, executors


@pytest.mark.timeout(240)
def test_an_archive_is_written_by_a_cluster(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(2000))
    with cluster(tmp_path) as url:
        flags = (
            f"--master={url}", f"--nsqd-http-address={broker.http_address}", "--topic=t",
            f"--output={tmp_path / 'out'}", "--trigger=once", "--min-partitions=2",
            "--conf=spark.executor.memory=512m",
        )  # fmt: skip
        with Command("archive", *flags, SPARK_LOCAL_IP="127.0.0.1") as command:
            assert command.wait(180) == 0, command.stderr
    assert sorted(row["value"] for row in rows_of(tmp_path / "out")) == sorted(numbered(2000))
    # both workers had something to do
    assert executors(tmp_path) == [1, 1]
    assert broker.depth("t", "nsq_to_spark_archive") == 0
