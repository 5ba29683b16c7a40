"""What `make run` starts, on free ports: it says where everything is, and ends with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.command import wait_until_gone
from tests.spark.test_exactly_once import descendants

PORTS = [
    f"--{name}-address=127.0.0.1:0"
    for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
]
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

    def rest(self) -> str:
        """What else it has printed, after its end."""
        assert self.process.stdout is not None
        self._drain.join(5)
        return self.process.stdout.read()

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


def test_it_ends_with_the_servers(demo: Callable[..., Demo]) -> None:
    running = demo("--max-deflate-level=99")
    assert running.process.wait(HANG) == 1
    running._drain.join(5)
    assert "--max-deflate-level must be [1,9]" in "".join(running.stderr)


def test_a_port_in_use_is_one_line_with_its_flag(demo: Callable[..., Demo]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = demo(f"--lookupd-http-address={address}")
        assert running.process.wait(HANG) == 1
    running._drain.join(5)
    (line,) = running.stderr
    assert line.startswith(f"nsquark: --lookupd-http-address {address}: the port is in use")


def test_without_the_demo_there_are_only_servers(demo: Callable[..., Demo]) -> None:
    running = demo("--demo=false")
    running.says("^(Ctrl-C)")
    assert running.end(signal.SIGINT) == 0
    assert running.rest() == "\n"
    assert running.stderr == []


def test_where_spark_cannot_be_installed_no_archive_is_announced(demo: Callable[..., Demo]) -> None:
    running = demo("--spark-setup=echo no java >&2; false")
    running.says("^(There is no Spark here)")
    assert running.end(signal.SIGTERM) == 0
    assert running.rest() == ""
    assert running.stderr == ["no java\n"]


def test_an_installation_under_way_ends_too(demo: Callable[..., Demo], tmp_path: Path) -> None:
    running = demo(f"--spark-setup=sh -c 'sleep 1000 & touch {tmp_path}/begun; wait'")
    while not (tmp_path / "begun").exists():
        assert running.process.poll() is None, "".join(running.stderr)
        time.sleep(0.05)
    assert running.end(signal.SIGINT) == 0


def test_the_commands_that_it_prints_work_as_they_are(demo: Callable[..., Demo]) -> None:
    running = demo("--spark-setup=false")
    for name, answer in (("publish", "OK"), ("consume", "hello\n")):
        command = running.says(rf"^{name}: +(.+)$")
        if name == "consume":
            command += " --to latest"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HANG)
        assert done.stdout == answer, done.stderr
    assert '"producers"' in subprocess.run(
        running.says("^look up: +(.+)$"), shell=True, capture_output=True, text=True, timeout=HANG
    ).stdout  # fmt: skip


@pytest.mark.timeout(HANG)
def test_the_query_is_printed_when_it_has_an_answer(demo: Callable[..., Demo]) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java")
    running = demo()
    query = running.says(r"^query: +(\S+ -c .*)$")
    answer = subprocess.run(query, shell=True, capture_output=True, text=True)
    assert re.fullmatch(r"\[\{'topic': 'demo', 'hour': \d+, 'id_count': \d+\}.*\]\n", answer.stdout), (
        answer.stderr
    )
    assert running.end(signal.SIGINT) == 0
    assert not any("ERROR" in line for line in running.stderr), running.stderr


@pytest.mark.timeout(HANG)
def test_an_archive_that_ends_is_told_of(demo: Callable[..., Demo], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    running = demo(f"--archive={tmp_path / 'file'}")
    while not any("archive ended with status" in line for line in running.stderr):
        assert running.process.poll() is None, "".join(running.stderr)
        time.sleep(0.05)
    assert running.end(signal.SIGINT) == 0


@pytest.mark.timeout(HANG)
def test_an_end_while_spark_starts_is_quick(demo: Callable[..., Demo]) -> None:
    running = demo()
    running.says(r"^(Topic demo gets)")
    assert running.end(signal.SIGINT) == 0
