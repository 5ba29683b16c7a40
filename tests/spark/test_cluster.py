"""A standalone master and two workers, each a process: executors read from nsqd by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.broker import Broker
from tests.spark.cluster import Cluster
from tests.spark.test_exactly_once import DRIVER


@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(240)
def test_a_query_runs_on_a_cluster(broker: Broker, spark_cluster: Cluster, tmp_path: Path) -> None:
    for first in range(0, 2000, 100):
        broker.publish("t", [b"%d" % number for number in range(first, first + 100)])
    one, two = spark_cluster.executors()
    done = subprocess.run(
        [sys.executable, str(DRIVER), broker.http_address, str(tmp_path), "finish"],
        env={**os.environ, "NSQUARK_SPARK_MASTER": spark_cluster.url},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    assert sorted(int(line.split()[0]) for line in lines) == list(range(2000))
    # both workers had something to do
    assert spark_cluster.executors() == [one + 1, two + 1]
    assert broker.depth("t", "archive") == 0
