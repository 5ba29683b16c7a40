"""`nsquark up`: two daemons in one process."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.diskqueue.queues import record, write_queue
from tests.tools.people.command import SOON, Running, failure, output

PORTS = [
    f"--{name}-address=127.0.0.1:0"
    for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
]


@contextmanager
def up(data_path: Path, *words: str) -> Iterator[tuple[Running, dict[str, str]]]:
    with Running("up", "--json", f"--data-path={data_path}", *PORTS, *words) as running:
        line = running.line()
        assert line, running.process.communicate()
        yield running, json.loads(line)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_all_daemons_serve_and_stop_together(tmp_path: Path, signum: signal.Signals) -> None:
    with up(tmp_path / "new" / "data", "--", "--max-msg-size=100") as (running, at):
        output("pub", "test", "hello", "--nsqd-tcp", at["nsqd_tcp"])
        deadline = time.monotonic() + 20
        while "test" not in output("topic", "list", "--lookupd-http", at["lookupd_http"]):
            assert time.monotonic() < deadline
        assert output("tail", "test", "--to", "latest", "--lookupd-http", at["lookupd_http"]) == "hello\n"
        refused = failure("pub", "test", "x" * 101, "--nsqd-tcp", at["nsqd_tcp"])  # nsqd's own flags
        assert "takes 1 to 100" in refused
        assert at["pid"] == running.process.pid
        host, _, port = at["admin_http"].rpartition(":")
        with urllib.request.urlopen(f"http://{host}:{port}/api/topics", timeout=10) as answer:
            assert json.load(answer)["topics"] == ["test"]
        status, stdout, stderr = running.interrupt(signum)
    assert (status, stdout) == (0, "")
    assert " ERROR: " not in stderr
    # What was published is there again.
    with up(tmp_path / "new" / "data") as (_, at):
        assert output("tail", "test", "--to", "latest", "--nsqd-http", at["nsqd_http"]) == "hello\n"


def test_a_consumer_and_a_hanging_client_do_not_hold_it_up(tmp_path: Path) -> None:
    with up(tmp_path) as (running, at):
        host, _, port = at["nsqd_tcp"].rpartition(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"  V2SUB t ch\nRDY 1\n")
            host, _, port = at["lookupd_http"].rpartition(":")
            with socket.create_connection((host, int(port))) as half:
                half.sendall(b"GET /nodes HTTP/1.1\r\n")
                begun = time.monotonic()
                assert running.interrupt()[0] == 0
    assert time.monotonic() - begun < SOON


def test_it_says_what_to_do_next(tmp_path: Path) -> None:
    with Running("up", f"--data-path={tmp_path}", *PORTS) as running:
        text = "".join(running.line() for _ in range(11))
        status, _, stderr = running.interrupt()
    assert status == 0
    assert stderr == f"stopped; what was published is in {tmp_path}\n"
    assert "publish:    nsquark pub test hello --nsqd-tcp 127.0.0.1:" in text
    assert "Ctrl-C stops everything." in text


@pytest.mark.parametrize("flag", ["nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http"])
def test_a_port_in_use_is_told_with_its_flag(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = failure("up", f"--data-path={tmp_path}", *PORTS, f"--{flag}-address={address}")
    assert line.startswith(f"nsquark: --{flag}-address {address}: the port is in use")


def test_what_it_cannot_start_with_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"--data-path {tmp_path}/file" in failure("up", f"--data-path={tmp_path}/file", *PORTS)
    assert "must be [1,9]" in failure("up", f"--data-path={tmp_path}", *PORTS, "--", "--max-deflate-level=99")
    assert "no such flag" in failure("up", f"--data-path={tmp_path}", *PORTS, "--", "--nope").replace(
        "flag provided but not defined: -nope", "no such flag"
    )
    with up(tmp_path / "data") as _:
        assert "--data-path: cannot flock" in failure("up", f"--data-path={tmp_path / 'data'}", *PORTS)


def test_nobody_has_to_read_what_it_says(tmp_path: Path) -> None:
    with Running("up", f"--data-path={tmp_path}", "--log-level=info", *PORTS) as running:
        assert running.process.stdout is not None
        assert running.process.stderr is not None
        running.process.stdout.close()
        listening = [line for line in _lines(running) if b"HTTP: listening on " in line]
        nsqd_http = listening[-1].rpartition(b" ")[2].strip().decode()
        assert "no topics" in output("stat", "--nsqd-http", nsqd_http)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(20) == 0
        assert b"Traceback" not in running.process.stderr.read()


def _lines(running: Running) -> Iterator[bytes]:
    """The lines of the log until both daemons listen for HTTP."""
    assert running.process.stderr is not None
    listening = 0
    while listening < 2:
        line = running.process.stderr.readline()
        assert line
        listening += b"HTTP: listening on " in line
        yield line


def test_messages_of_gos_nsqd_are_taken_over(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", [record(each) for each in range(3)])
    assert "--import=check is for nsqd alone" in failure(
        "up", f"--data-path={tmp_path}", *PORTS, "--", "--import=check"
    )
    assert "--import=on" in failure("up", f"--data-path={tmp_path}", *PORTS, "--", "--import=off")
    with up(tmp_path) as (_, at):
        lines = output("tail", "t", "--from", "earliest", "--to", "latest", "--nsqd-http", at["nsqd_http"])
        assert lines == "message 0\nmessage 1\nmessage 2\n"
