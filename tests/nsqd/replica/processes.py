"""nsqds as processes of their own: a primary and its followers."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any


class Nsqd:
    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self._log = directory.with_name(f"{directory.name}.{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "nsquark.nsqd", f"--data-path={directory}", "--node-id=7"]
        command += ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *flags]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        self.http_port = self._port("HTTP")

    def _port(self, kind: str, after: int = 0) -> int:
        def look() -> int:
            assert self.process.poll() is None, self.log
            found = re.findall(kind + r": listening on 127\.0\.0\.1:(\d+)", self.log)
            return int(found[after]) if len(found) > after else 0

        return until(look)

    def promoted(self) -> None:
        """The process serves as a primary now, on another port."""
        self.http_port = self._port("HTTP", 1)

    @property
    def tcp_port(self) -> int:
        return self._port("TCP")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def replica(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask("GET", "/replica")[1])
        return answer

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Member(Nsqd):
    """A member of a replica group. It keeps its ports over restarts, and when it becomes another process."""

    def __init__(self, root: Path, name: str, etcd: str, *flags: str, python: str = sys.executable) -> None:
        self.name = name
        self._python = python
        self.directory = root / name
        self.directory.mkdir(exist_ok=True)
        self.ports = free_port(), free_port()
        self._root, self._flags = root, (f"--replica-etcd={etcd}", *flags)
        self.start()

    def start(self, *flags: str) -> None:
        tcp, self.http_port = self.ports
        self._log = self._root / f"{self.name}.{time.monotonic_ns()}.log"
        command = [
            *(self._python, "-m", "nsquark.nsqd", f"--data-path={self.directory}", "--node-id=7"),
            *(f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{self.http_port}"),
            *("--broadcast-address=127.0.0.1", "--replica-group=g", f"--replica-member={self.name}"),
            *(*self._flags, *flags),
        ]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        self._port("HTTP")

    @property
    def tcp_port(self) -> int:
        return self.ports[0]

    @property
    def tcp_address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def state(self) -> dict[str, Any]:
        """What `/replica` says; nothing while the process is down or becomes another one."""
        try:
            return self.replica()
        except OSError:
            return {"state": "", "serving": False}

    def serves(self) -> None:
        until(lambda: self.state()["serving"])

    def is_in_sync(self) -> None:
        until(lambda: self.state()["state"] == "in-sync")


def until(condition: Any, seconds: float = 30.0) -> Any:
    """Look again and again; the time only bounds a test that fails."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.01)
    return found


def files(directory: Path) -> dict[str, bytes]:
    found = {}
    for top in ("topics", "staged"):
        for path in (directory / top).rglob("*"):
            if path.is_file():
                found[str(path.relative_to(directory))] = path.read_bytes()
    return found
