"""The utilities as processes between nsqds, an HTTP server and a folder, and how far each has got.

`Place` is where they work. A `Job` is one utility with its flags: what it reads, what it writes to, and the
number of messages that it has forwarded.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "daemon"))

from servers import Server, nsqd  # noqa: E402

TOOLS = ("to_nsq", "nsq_to_nsq", "nsq_to_file", "nsq_to_http")
CHANNEL = "forward"
STALLED = 60.0  # seconds without progress


class Stalled(Exception):
    """A utility ended or does not go on."""


def ours(tool: str) -> list[str] | None:
    """The command of our utility; None if this Python has none."""
    try:
        found = importlib.util.find_spec(f"nsquark.tools.{tool}.__main__")
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return [sys.executable, "-m", f"nsquark.tools.{tool}"]
    script = Path(sys.executable).parent / tool
    return [str(script)] if script.exists() else None


@dataclass
class Place:
    """Two nsqds, an HTTP server that takes every POST, and a folder."""

    source: Server
    destination: Server
    http_port: int
    folder: Path

    def stats(self, server: Server, topic: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{server.http_port}/stats?format=json&topic={topic}&include_clients=false"
        with urllib.request.urlopen(url, timeout=60) as answer:
            topics = json.load(answer)["topics"]
        found: dict[str, Any] = topics[0] if topics else {"message_count": 0, "depth": 0, "channels": []}
        return found


@contextmanager
def place(executable: Path, flags: Sequence[str], folder: Path, keep: Path | None = None) -> Iterator[Place]:
    """Start the servers; `keep` is a file for the bodies that the HTTP server takes."""
    with ExitStack() as stack:
        source = stack.enter_context(nsqd(executable, flags, None))
        destination = stack.enter_context(nsqd(executable, flags, None))
        sink = [sys.executable, str(HERE / "http_sink.py"), *([f"--keep={keep}"] if keep else [])]
        process = subprocess.Popen(sink, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield Place(source, destination, int(process.stdout.readline()), folder)
        finally:
            process.terminate()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def post(port: int, path: str, body: bytes = b"") -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method="POST")
    urllib.request.urlopen(request, timeout=60).close()


@dataclass
class Job:
    """A utility, the topic it forwards, and where it works."""

    tool: str
    topic: str
    place: Place
    max_in_flight: int = 200

    def prepare(self, lines: Path) -> None:
        """Make the topic and its channel, and fill them with lines, unless stdin brings these."""
        server = self.place.destination if self.tool == "to_nsq" else self.place.source
        post(server.http_port, f"/topic/create?topic={self.topic}")
        if self.tool == "to_nsq":
            return
        post(server.http_port, f"/channel/create?topic={self.topic}&channel={CHANNEL}")
        with lines.open("rb") as file:
            while some := file.readlines(4_000_000):
                post(server.http_port, f"/mpub?topic={self.topic}", b"".join(some))

    def flags(self) -> list[str]:
        place = self.place
        source = f"--nsqd-tcp-address=127.0.0.1:{place.source.port}"
        destination = f"127.0.0.1:{place.destination.port}"
        if self.tool == "to_nsq":
            return [f"--topic={self.topic}", f"--nsqd-tcp-address={destination}"]
        flags = [f"--topic={self.topic}", f"--channel={CHANNEL}", source]
        flags.append(f"--max-in-flight={self.max_in_flight}")
        match self.tool:
            case "nsq_to_nsq":
                flags.append(f"--destination-nsqd-tcp-address={destination}")
            case "nsq_to_file":
                flags += [f"--output-dir={self.place.folder}", "--sync-interval=1s"]
            case "nsq_to_http":
                flags.append(f"--post=http://127.0.0.1:{place.http_port}/")
        return flags

    def start(self, command: Sequence[str], stdin: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        log = self.place.folder / f"{self.topic}.log"
        with log.open("ab") as stderr:
            return subprocess.Popen(
                [*command, *self.flags()],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def forwarded(self, count: int) -> int:
        """How many of `count` messages are stored at their destination and finished at their source."""
        if self.tool == "to_nsq":
            return int(self.place.stats(self.place.destination, self.topic)["message_count"])
        (channel,) = self.place.stats(self.place.source, self.topic)["channels"]
        return count - int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])

    def wait(self, process: subprocess.Popen[bytes] | None, count: int, wanted: int) -> Iterator[int]:
        """Yield the number of messages that are forwarded, again and again, until it is `wanted`."""
        done, since = -1, time.monotonic()
        while True:
            now = self.forwarded(count)
            if now > done:
                done, since = now, time.monotonic()
            yield done
            if done >= wanted:
                return
            ended = process is not None and self.tool != "to_nsq" and process.poll() is not None
            if ended or time.monotonic() > since + STALLED:
                log = (self.place.folder / f"{self.topic}.log").read_text(errors="replace")
                raise Stalled(f"{self.tool} stopped at {done} of {wanted} messages:\n{log[-2000:]}")
            time.sleep(0.01)


def ended(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end of a process, and return the seconds of processor time that it took."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime
