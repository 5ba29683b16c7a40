"""A real nsqd for the tests of code that uses NSQ: a pytest plugin, and the class behind it.

In `conftest.py`: `pytest_plugins = ["nsquark.testing"]`. Then a test that takes `nsqd` gets a running one,
with nothing in it, on ports of its own:

    async def test_orders_are_billed(nsqd):
        async with nsquark.Producer(nsqd.tcp_address) as producer:
            …
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

import pytest

_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")
_PATIENCE = 30.0


class Nsqd:
    """An nsqd process with a data directory of its own, from `start` to `stop`, or within a `with`."""

    def __init__(self, *flags: str) -> None:
        """`flags` as on nsqd's command line, such as `--msg-timeout=1s`."""
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self._data: tempfile.TemporaryDirectory[str] | None = None
        self._addresses: dict[str, str] = {}
        self._ready = threading.Event()
        self._last_lines: deque[str] = deque(maxlen=200)

    @property
    def tcp_address(self) -> str:
        """Where producers and consumers connect."""
        return self._addresses["TCP"]

    @property
    def http_address(self) -> str:
        return self._addresses["HTTP"]

    def start(self) -> Self:
        """Start it, and return when it serves."""
        self._data = tempfile.TemporaryDirectory(prefix="nsqd-")
        command = [
            *(sys.executable, "-m", "nsquark.nsqd"),
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--data-path={self._data.name}",
            *self._flags,
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True).start()
        self._ready.wait(_PATIENCE)
        if len(self._addresses) < 2:
            self.stop()
            raise RuntimeError("nsqd did not start:\n" + "".join(self._last_lines))
        return self

    def _read(self, stderr: IO[str]) -> None:
        with stderr:
            for line in stderr:
                self._last_lines.append(line)
                if not self._ready.is_set() and (found := _LISTENING.search(line)):
                    self._addresses[found[1]] = found[2]
                    if len(self._addresses) == 2:
                        self._ready.set()
        self._ready.set()

    def stop(self) -> None:
        """End it, and delete its data."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._data is not None:
            self._data.cleanup()
            self._data = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    """A running nsqd, empty, for this test alone."""
    with Nsqd() as running:
        yield running
