"""A standalone master and two workers, each a process: executors read from nsqd by themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.spark.broker import Broker
from tests.spark.test_exactly_once import DRIVER, descendants

HOME = Path(pyspark.__file__).parent


@contextmanager
def spark_class(*arguments: str, folder: Path) -> Iterator[Iterator[str]]:
    """A daemon of Spark's, and the lines that it logs; it is killed at the end."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        yield iter(process.stderr)
    finally:
        family = [process.pid, *descendants(process.pid)]
        for pid in family:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_for(lines: Iterator[str], pattern: str) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"no {pattern!r} in\n{''.join(seen)}")


@pytest.mark.timeout(240)
def test_a_query_runs_on_a_cluster(broker: Broker, tmp_path: Path) -> None:
    for first in range(0, 2000, 100):
        broker.publish("t", [b"%d" % number for number in range(first, first + 100)])
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
            done = subprocess.run(
                [sys.executable, str(DRIVER), broker.http_address, str(tmp_path), "finish"],
                env={**os.environ, "NSQUARK_SPARK_MASTER": url},
                capture_output=True,
                text=True,
                timeout=180,
            )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "values").read_text().split("\n")[:-1]
    assert sorted(int(line.split()[0]) for line in lines) == list(range(2000))
    # both workers had something to do
    assert [len(list((tmp_path / name).glob("app-*/*"))) for name in ("one", "two")] == [1, 1]
    assert broker.depth("t", "archive") == 0
