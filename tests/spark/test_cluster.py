"""A standalone master and two workers, each a process: executors read from nsqd by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.pipeline.shipping import write_library
from tests.spark import submitted
from tests.spark.broker import Broker, numbered
from tests.spark.cluster import HOME, Cluster, small_environment
from tests.spark.session import QUICK_START
from tests.spark.test_exactly_once import DRIVER

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]


def test_a_query_runs_on_a_cluster(broker: Broker, spark_cluster: Cluster, tmp_path: Path) -> None:
    for first in range(0, 2000, 100):
        broker.publish("t", [b"%d" % number for number in range(first, first + 100)])
    one, two = spark_cluster.executors()
    done = subprocess.run(
        [sys.executable, str(DRIVER), broker.http_address, str(tmp_path), "finish"],
        env={**os.environ, "NSQUARK_SPARK_MASTER": spark_cluster.url},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    assert sorted(int(line.split()[0]) for line in lines) == list(range(2000))
    # both workers had something to do
    assert spark_cluster.executors() == [one + 1, two + 1]
    assert broker.depth("t", "archive") == 0


def spark_submit(cluster: Cluster, broker: Broker, folder: Path, *flags: str, **environment: str) -> None:
    """Run `submitted.py` in `folder`, on a machine where nsquark is not installed either."""
    broker.publish("t", numbered(200))
    java = [f"--conf=spark.{role}.extraJavaOptions={QUICK_START}" for role in ("driver", "executor")]
    # one executor, which is enough to show that it finds nsquark
    settings = (
        "spark.cores.max=1", "spark.executor.memory=512m", "spark.driver.host=127.0.0.1",
        "spark.ui.enabled=false",
    )  # fmt: skip
    program = (submitted.__file__, broker.http_address, str(folder))
    submit = (HOME / "bin" / "spark-submit", f"--master={cluster.url}")
    done = subprocess.run(
        [*submit, *(f"--conf={each}" for each in settings), *java, *flags, *program],
        cwd=folder,
        env={**cluster.environment, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert sorted((folder / "values").read_bytes().splitlines()) == sorted(numbered(200))
    assert broker.depth("t", "submitted") == 0
    assert broker.log("out")["next"] == 1


def test_a_zip_is_enough_for_spark_submit(broker: Broker, spark_cluster: Cluster, tmp_path: Path) -> None:
    write_library(tmp_path / "nsquark.zip")
    spark_submit(spark_cluster, broker, tmp_path, "--py-files=nsquark.zip", PYTHONPATH="nsquark.zip")


def test_an_archive_of_an_environment_is_enough_for_spark_submit(
    broker: Broker, spark_cluster: Cluster, tmp_path: Path
) -> None:
    archive = small_environment(tmp_path / "env.tar.gz")
    (tmp_path / "env").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path / "env"], check=True, timeout=60)
    spark_submit(
        spark_cluster, broker, tmp_path, "--archives=env.tar.gz#env", PYSPARK_PYTHON="./env/bin/python"
    )
