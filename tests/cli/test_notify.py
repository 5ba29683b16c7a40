"""What systemd hears of the daemons."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.cli.notify import notify
from tests.daemon import PATIENCE, Nsqadmin, Nsqd, Nsqlookupd


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def heard(systemd: socket.socket, word: str) -> list[str]:
    """The lines of the next datagram that has this one; those before are passed over."""
    while word not in (lines := systemd.recv(4096).decode().splitlines()):
        pass
    return lines


def test_lines_are_sent_in_one_datagram(systemd: socket.socket) -> None:
    notify("READY=1", "STATUS=serving")
    assert systemd.recv(4096) == b"READY=1\nSTATUS=serving"


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"nsquark-test-{os.getpid()}"
        sock.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert sock.recv(4096) == b"READY=1"


def test_nobody_there_is_no_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_a_daemon_is_ready_alive_and_stops(
    systemd: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    (tmp_path / "data").mkdir()
    for daemon in (Nsqd(tmp_path / "data"), Nsqlookupd(), Nsqadmin("--lookupd-http-address=127.0.0.1:1")):
        process = subprocess.Popen(daemon.command(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            heard(systemd, "READY=1")
            heard(systemd, "WATCHDOG=1")
            heard(systemd, "WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            heard(systemd, "STOPPING=1")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
