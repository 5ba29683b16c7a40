"""Starting nsqd quickly: `ForkedNsqd` is tests.daemon's `Nsqd`, started by `launcher`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from tests.daemon import PATIENCE, Nsqd


class Launcher:
    """The process that forks nsqds, or mutants of it. A context: its end is theirs."""

    def __init__(self, mutant: str = "") -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(PATIENCE)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reliability.crashes.launcher", str(theirs.fileno()), *mutant.split()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()
        self._process.wait(PATIENCE)

    def start(self, argv: list[str]) -> Forked:
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._requests, [json.dumps({"argv": argv}).encode()], [writing])
        finally:
            os.close(writing)
        return Forked(self, int(self._requests.recv(100)), reading)

    def wait(self, pid: int, timeout: float) -> int:
        self._requests.settimeout(timeout)
        try:
            self._requests.send(json.dumps({"wait": pid}).encode())
            return int(self._requests.recv(100))
        except TimeoutError:
            raise subprocess.TimeoutExpired("nsqd", timeout) from None
        finally:
            self._requests.settimeout(PATIENCE)


class Forked:
    """What `Daemon` uses of a Popen."""

    def __init__(self, launcher: Launcher, pid: int, stderr: int) -> None:
        self._launcher = launcher
        self.pid = pid
        self.stderr = open(stderr, "rb")  # noqa: SIM115 - the thread that reads it closes it
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:  # its id is kept until it was waited for
            os.kill(self.pid, number)

    def wait(self, timeout: float = PATIENCE) -> int:
        if self.returncode is None:
            self.returncode = self._launcher.wait(self.pid, timeout)
        return self.returncode


class ForkedNsqd(Nsqd):
    def __init__(self, launcher: Launcher, data_path: Path, *flags: str) -> None:
        super().__init__(data_path, *flags)
        self._launcher = launcher

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", self._launcher.start(command[len(self.program) :]))
