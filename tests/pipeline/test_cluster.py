"""The same command on a standalone master and two workers, each a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.command import Command, rows_of
from tests.spark.broker import Broker, numbered
from tests.spark.test_cluster import spark_class, wait_for


@pytest.mark.timeout(240)
def test_an_archive_is_written_by_a_cluster(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(2000))
    deploy = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    with spark_class(f"{deploy}.master.Master", *local, "--port", "0", folder=tmp_path) as master:
        url = wait_for(master, r"spark://127\.0\.0\.1:\d+")
        worker = (f"{deploy}.worker.Worker", *local, "--cores", "1", "--memory", "600m", url)
        with (
            spark_class(*worker, folder=tmp_path / "one") as one,
            spark_class(*worker, folder=tmp_path / "two") as two,
        ):
            for lines in (one, two):
                wait_for(lines, "Successfully registered with master")
            flags = (
                f"--master={url}", f"--nsqd-http-address={broker.http_address}", "--topic=t",
                f"--output={tmp_path / 'out'}", "--trigger=once", "--min-partitions=2",
                "--conf=spark.executor.memory=512m",
            )  # fmt: skip
            with Command("archive", *flags, SPARK_LOCAL_IP="127.0.0.1") as command:
                assert command.wait(180) == 0, command.stderr
    assert sorted(row["value"] for row in rows_of(tmp_path / "out")) == sorted(numbered(2000))
    # both workers had something to do
    assert [len(list((tmp_path / name).glob("app-*/*"))) for name in ("one", "two")] == [1, 1]
    assert broker.depth("t", "nsq_to_spark_archive") == 0
