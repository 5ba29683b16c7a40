"""nsq_to_file as a process, and what it has written."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from signal import SIGTERM, Signals
from types import TracebackType
from typing import Self

import cramjam

from tests.daemon import PATIENCE, Nsqd

PROGRAM = ("-m", "nsquark.tools.nsq_to_file")


class Archiver:
    """`with Archiver(out, "--topic=t", …).start() as archiver` ends with a kill."""

    def __init__(self, out: Path, *flags: str, program: Iterable[str] = PROGRAM) -> None:
        self.out = out
        self.flags = flags
        self.lines: list[str] = []
        self.process: subprocess.Popen[str]
        self._program = [sys.executable, *program]
        self._news = threading.Condition()
        self._drain: threading.Thread

    def start(self, *flags: str, preexec: object = None) -> Self:
        self.lines = []
        self.process = subprocess.Popen(
            [*self._program, f"--output-dir={self.out}", *self.flags, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,  # type: ignore[arg-type]
        )
        self._drain = threading.Thread(target=self._read, daemon=True)
        self._drain.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for_line(self, pattern: str, times: int = 1, within: float = PATIENCE) -> str:
        """The line of its stderr that matches, as the n-th, once it is there."""
        deadline = time.monotonic() + within
        with self._news:
            while True:
                found = [line for line in self.lines if re.search(pattern, line)]
                if len(found) >= times:
                    return found[times - 1]
                left = deadline - time.monotonic()
                assert left > 0, f"no {pattern!r} in\n" + "\n".join(self.lines)
                self._news.wait(left)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._drain.join(PATIENCE)

    def signal(self, number: Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: Signals = SIGTERM) -> int:
        """A graceful end; the exit code."""
        self.signal(number)
        return self.ended()

    def ended(self) -> int:
        """The exit code of a process that ends by itself."""
        status = self.process.wait(PATIENCE)
        self._drain.join(PATIENCE)
        return status

    # ---- what it has written

    @property
    def files(self) -> dict[str, bytes]:
        return files(self.out)

    @property
    def written(self) -> list[bytes]:
        """All lines of all files, in the order of the names."""
        return [line for data in self.files.values() for line in data.splitlines()]


def files(directory: Path) -> dict[str, bytes]:
    """What the files below a directory hold, decompressed, by their relative names."""
    return {
        str(path.relative_to(directory)): content(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return bytes(cramjam.zstd.decompress(data)) if path.suffix == ".zst" else data


def ended(*flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that does not get going."""
    done = subprocess.run(
        [sys.executable, *PROGRAM, *flags], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


async def unfinished(nsqd: Nsqd, topic: str, channel: str = "nsq_to_file") -> int:
    """Messages of a channel that are not finished."""
    import json

    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}&channel={channel}")
    document = json.loads(answer)
    topics = document["topics"]
    if not topics or not topics[0]["channels"]:
        return -1
    stats = topics[0]["channels"][0]
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])
