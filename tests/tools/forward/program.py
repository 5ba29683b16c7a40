"""The forwarding utilities as real processes: started with flags, their stderr read, ended by signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.daemon import PATIENCE


class Program:
    """`with Program("nsq_to_nsq", …) as program` starts it, and kills it at the end if it still runs."""

    def __init__(self, name: str, *flags: str, env: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []  # of its stderr
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"nsquark.tools.{name}", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        self._news = threading.Condition()
        self._silent = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_for_line(self, pattern: str, within: float = PATIENCE) -> str:
        """The first line of its stderr that matches, once it is there."""

        def matching() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._news:
            line = self._news.wait_for(lambda: matching() or self._silent, within)
        assert isinstance(line, str), f"no {pattern!r} in\n" + "\n".join(self.lines)
        return line

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, within: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(within)
        self._reader.join(PATIENCE)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = PATIENCE) -> int:
        self.send(number)
        return self.ended(within)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()


def refused(name: str, *flags: str) -> tuple[int, str]:
    """The exit code and the stderr of a program that does not start, without the date of its line."""
    done = subprocess.run(
        [sys.executable, "-m", f"nsquark.tools.{name}", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, re.sub(r"\A\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "", done.stderr)
