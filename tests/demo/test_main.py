"""What `make run` starts, on free ports: it says where everything is, and ends with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.command import wait_until_gone
from tests.spark.broker import ask
from tests.spark.test_exactly_once import descendants

PORTS = [f"--{name}-address=127.0.0.1:0" for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http")]
HANG = 600  # seconds that no machine takes, however busy it is


class Demo:
    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nsquark.demo", f"--data-path={folder / 'data'}", *PORTS, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stderr: list[str] = []
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self.stderr.extend(self.process.stderr)

    def says(self, pattern: str) -> str:
        """The first line of its stdout that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError("".join(self.stderr))

    def end(self, signum: signal.Signals) -> int:
        """Its status, when it and all that it has started are gone."""
        family = [self.process.pid, *descendants(self.process.pid)]
        self.process.send_signal(signum)
        status = self.process.wait(HANG)
        wait_until_gone(family)
        return status

    def kill(self) -> None:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._drain.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*flags: str) -> Demo:
        started.append(Demo(tmp_path, *flags))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_servers_alone(demo: Callable[..., Demo], signum: signal.Signals) -> None:
    running = demo("--demo=false", "--", "--max-msg-size=100")
    published = running.says(r"'http://(127\.0\.0\.1:\d+)/pub\?topic=test'")
    lookupd = running.says(r"'http://(127\.0\.0\.1:\d+)/lookup\?topic=test'")
    assert ask(published, "POST", "/pub?topic=test", b"hello") == (200, b"OK")
    assert ask(published, "POST", "/pub?topic=test", b"x" * 101)[0] == 413  # nsqd's own flags
    deadline = time.monotonic() + HANG
    while ask(lookupd, "GET", "/lookup?topic=test")[0] != 200:
        assert time.monotonic() < deadline
    assert running.end(signum) == 0


def test_it_ends_with_nsqd(demo: Callable[..., Demo]) -> None:
    running = demo("--demo=false", "--", "--max-deflate-level=99")
    assert running.process.wait(HANG) == 1
    running._drain.join(5)
    assert "--max-deflate-level must be [1,9]" in "".join(running.stderr)


@pytest.mark.timeout(HANG)
def test_a_stream_is_archived_and_can_be_asked_for(demo: Callable[..., Demo], tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    running = demo()
    query = running.says(r"^query: +(\S+ -c .*)$")
    # Whatever ends says so, so that only a hang waits for long.
    while not list((tmp_path / "data" / "archive").rglob("*.parquet")):
        assert running.process.poll() is None, "".join(running.stderr)
        assert not any("archive ended with status" in line for line in running.stderr), "".join(
            running.stderr
        )
        time.sleep(0.1)
    answer = subprocess.run(query, shell=True, capture_output=True, text=True)
    assert re.fullmatch(r"\[\{'topic': 'demo', 'hour': \d+, 'id_count': \d+\}.*\]\n", answer.stdout), (
        answer.stderr
    )
    assert running.end(signal.SIGINT) == 0


@pytest.mark.timeout(HANG)
def test_an_archive_that_ends_is_told_of(demo: Callable[..., Demo], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    running = demo(f"--archive={tmp_path / 'file'}")
    running.says(r"^(query)")
    while not any("archive ended with status" in line for line in running.stderr):
        assert running.process.poll() is None, "".join(running.stderr)
        time.sleep(0.05)
    assert running.end(signal.SIGINT) == 0


@pytest.mark.timeout(HANG)
def test_an_end_while_spark_starts_is_quick(demo: Callable[..., Demo]) -> None:
    running = demo()
    running.says(r"^(query)")
    assert running.end(signal.SIGINT) == 0
