"""nsq_to_spark as these tests use it: in this process with their session, or as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from nsquark.pipeline.__main__ import check_source, parse
from nsquark.pipeline.running.queries import StopSignal
from tests.spark.interpreter import interpreter
from tests.spark.session import QUICK_START
from tests.spark.test_exactly_once import descendants


def run(spark: SparkSession, *arguments: str, stop: StopSignal | None = None) -> Any:
    """A subcommand with flags, until it is done."""
    parsed = parse(arguments)
    assert parsed is not None
    subcommand, options = parsed
    check_source(options)
    module = import_module(f"nsquark.pipeline.commands.{subcommand.name}")
    return module.run(spark, options, stop if stop is not None else StopSignal())


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows in a folder of Parquet files, as a program without Spark reads them."""
    return list(ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist())


def wait_until_gone(pids: list[int], within: float = 20) -> None:
    """Wait until all of these processes have ended."""
    deadline = time.monotonic() + within
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Command:
    """A process; `with Command(...)` ends with a kill of whatever it has started."""

    def __init__(self, *arguments: str, under: Sequence[str] = (), **environment: str) -> None:
        """`under` is a command that runs it, such as timeout."""
        java = f"--conf=spark.driver.extraJavaOptions={QUICK_START}"
        self.process = subprocess.Popen(
            [
                *under,
                sys.executable,
                "-m",
                "nsquark.pipeline",
                arguments[0],
                "--master=local[2]",
                java,
                *arguments[1:],
            ],
            env={**os.environ, "PYSPARK_PYTHON": interpreter(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stderr = ""
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr += line

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def wait_for_line(self, number: int = 1) -> str:
        """The last of so many lines of its stdout; empty if it ended before."""
        assert self.process.stdout is not None
        line = ""
        for _ in range(number):
            line = self.process.stdout.readline()
        return line

    def family(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]

    def end(self, signum: signal.Signals, within: float = 60) -> int:
        self.process.send_signal(signum)
        return self.wait(within)

    def end_all(self, signum: signal.Signals, within: float = 60) -> int:
        """Send the signal to all processes, as systemd does."""
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        return self.wait(within)

    def wait(self, within: float = 100) -> int:
        status = self.process.wait(within)
        self._drain.join(5)
        return status

    def kill(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._drain.join(5)
