"""A publisher that the trouble of others must not touch: a process that sends PUBs and measures each.

`python -m reliability.untouched HOST:PORT` publishes to a topic of its own until its stdin ends, then prints
its figures as JSON. It is a process, so that the load of the trial does not slow it down.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

from reliability.outcome import percentile

TOPIC = "untouched"
BODY = b"x" * 100
RATE = 200  # PUBs a second at most
TIMEOUT = 60.0


class Latency(NamedTuple):
    """Of PUB to OK, in milliseconds."""

    pubs: int
    p50: float
    p99: float
    worst: float

    def __str__(self) -> str:
        return f"{self.p99:.1f} ms (median {self.p50:.2f}, worst {self.worst:.0f}, {self.pubs} PUBs)"


class Untouched:
    """`with Untouched(address) as untouched: …`, then `untouched.latency`."""

    def __init__(self, address: str, prefix: tuple[str, ...] = ()) -> None:
        self._command = [*prefix, sys.executable, "-m", "reliability.untouched", address]
        self.latency: Latency
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"begun\n":
            raise RuntimeError("the untouched publisher did not begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
            self._process.communicate()
            return
        told, _ = self._process.communicate(timeout=2 * TIMEOUT)
        figures: dict[str, Any] = json.loads(told)
        self.latency = Latency(**figures)


def main() -> int:
    host, _, port = sys.argv[1].rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rb")
    connection.sendall(b"  V2")
    command = b"PUB %s\n" % TOPIC.encode() + struct.pack(">I", len(BODY)) + BODY
    times: list[float] = []
    _publish(connection, stream, command)  # it makes the topic
    print("begun", flush=True)
    # At least one is measured, however short the trial and busy the machine is.
    while not times or not select.select([sys.stdin], [], [], max(0.0, 1 / RATE - times[-1]))[0]:
        begin = time.perf_counter()
        _publish(connection, stream, command)
        times.append(time.perf_counter() - begin)
    times.sort()
    milliseconds = [each * 1e3 for each in times]
    latency = Latency(
        len(times), percentile(milliseconds, 0.5), percentile(milliseconds, 0.99), milliseconds[-1]
    )
    print(json.dumps(latency._asdict()))
    return 0


def _publish(connection: socket.socket, stream: Any, command: bytes) -> None:
    connection.sendall(command)
    while True:
        size, _ = struct.unpack(">Ii", stream.read(8))
        data = stream.read(size - 4)
        if data == b"OK":
            return
        if data != b"_heartbeat_":
            raise SystemExit(f"untouched: nsqd says {data!r}")
        connection.sendall(b"NOP\n")


if __name__ == "__main__":
    sys.exit(main())
