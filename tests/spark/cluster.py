"""A standalone master and two workers, each a process, to run something on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.spark.session import QUICK_START
from tests.spark.test_exactly_once import descendants

HOME = Path(pyspark.__file__).parent
WORKERS = ("one", "two")  # and their folders


@dataclass
class Cluster:
    url: str  # of the master
    folder: Path

    def executors(self) -> list[int]:
        """How many each worker has had."""
        return [len(list((self.folder / name).glob("app-*/*"))) for name in WORKERS]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """One whose workers have registered."""
    deploy = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    with spark_class(f"{deploy}.master.Master", *local, "--port", "0", folder=folder) as master:
        url = wait_for(master, r"spark://127\.0\.0\.1:\d+")
        worker = (f"{deploy}.worker.Worker", *local, "--cores", "1", "--memory", "600m", url)
        first, second = WORKERS
        with (
            spark_class(*worker, folder=folder / first) as one,
            spark_class(*worker, folder=folder / second) as two,
        ):
            for lines in (one, two):
                wait_for(lines, "Successfully registered with master")
            yield Cluster(url, folder)


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
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
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
