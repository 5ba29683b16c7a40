"""The data source behind Spark Connect, where the client has no JVM: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import connect_client
from tests.spark.broker import Broker, numbered


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(400)
def test_a_client_of_spark_connect_reads_and_writes(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(10))
    done = subprocess.run(
        [sys.executable, connect_client.__file__, broker.http_address, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["10", "10"], done.stderr[-3000:]
    assert broker.depth("t", "c") == 0
    assert broker.log("out")["next"] == 1
