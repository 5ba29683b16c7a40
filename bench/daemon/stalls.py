"""How late PUBs to one topic are answered while another topic has very large state.

    python bench/daemon/stalls.py                          ours alone
    python bench/daemon/stalls.py --against PATH_TO_NSQD   with the other's figures

Every situation has a fresh nsqd. A publisher sends PUBs to a topic of its own, one after the other and 500 a
second at most, and measures each until its OK. The state of one topic must not be the reason why another
waits.
"""

import argparse
import http.client
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import servers
from servers import Server

ROOT = Path(__file__).resolve().parents[2]
RATE = 500
WINDOW = 1000  # commands whose answers are outstanding while state is built up
TIMEOUT = 120.0
HOUR_MS = 3_600_000
MESSAGE = 2  # the frame type


@dataclass(slots=True)
class Size:
    """How large the state is, and for how long PUBs are measured."""

    seconds: float = 5.0
    deferred: int = 1_000_000
    due: int = 300_000
    held: int = 400_000
    consumers: int = 500
    channels: int = 10_000


SMOKE = Size(seconds=0.3, deferred=300, due=300, held=200, consumers=5, channels=20)


class Client:
    """A plain connection that speaks V2."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self.socket.makefile("rb", 1 << 16)
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: type and data."""
        while True:
            size, kind = struct.unpack(">Ii", self._input.read(8))
            data = self._input.read(size - 4)
            if data != b"_heartbeat_":
                return kind, data
            self.send(b"NOP\n")

    def ok(self) -> None:
        _, data = self.frame()
        if data != b"OK":
            raise SystemExit(f"stalls.py: nsqd says {data!r}")

    def close(self) -> None:
        self._input.close()
        self.socket.close()


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + struct.pack(">I", len(body)) + body


def dpub(topic: str, delay_ms: int, body: bytes = b"x" * 100) -> bytes:
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + struct.pack(">I", len(body)) + body


def post(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT)
    connection.request("POST", path)
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"stalls.py: {path}: {answer.status} {answer.read()!r}")
    connection.close()


def defer(server: Server, topic: str, number: int, delay_ms: Callable[[], int]) -> None:
    """Publish deferred messages, a window at a time."""
    with closing(Client(server.port)) as client:
        for begin in range(0, number, WINDOW):
            count = min(WINDOW, number - begin)
            client.send(b"".join(dpub(topic, delay_ms()) for _ in range(count)))
            for _ in range(count):
                client.ok()


def measure(server: Server, seconds: float) -> dict[str, float]:
    times = []
    with closing(Client(server.port)) as client:
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            client.send(pub("measured", b"x" * 100))
            client.ok()
            times.append(time.perf_counter() - begin)
            time.sleep(max(0.0, 1 / RATE - times[-1]))
    times.sort()
    return {
        "p50_ms": times[len(times) // 2] * 1e3,
        "p99_ms": times[len(times) * 99 // 100] * 1e3,
        "worst_ms": times[-1] * 1e3,
    }


@contextmanager
def meanwhile(work: Callable[[], None], pause: float = 0.0) -> Iterator[None]:
    """Do something again and again beside the measurement, in a thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()
            stop.wait(pause)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(TIMEOUT)


# ---- the situations


def peace(server: Server, size: Size) -> dict[str, float]:
    return measure(server, size.seconds)


def deferred(server: Server, size: Size) -> dict[str, float]:
    """Very many deferred messages wait on a channel, and a few more come."""
    post(server, "/topic/create?topic=large")
    post(server, "/channel/create?topic=large&channel=c")
    defer(server, "large", size.deferred, lambda: HOUR_MS)
    with meanwhile(lambda: defer(server, "large", 10, lambda: HOUR_MS), 0.05):
        return measure(server, size.seconds)


def due(server: Server, size: Size) -> dict[str, float]:
    """Very many deferred messages fall due together."""
    post(server, "/topic/create?topic=large")
    post(server, "/channel/create?topic=large&channel=c")
    moment = time.time() + 2 + size.due / 30_000
    defer(server, "large", size.due, lambda: max(0, round((moment - time.time()) * 1000)))
    return measure(server, max(0.0, moment - time.time()) + size.seconds)


def held(server: Server, size: Size) -> dict[str, float]:
    """DPUBs to a paused topic that holds very many already."""
    post(server, "/topic/create?topic=large")
    post(server, "/channel/create?topic=large&channel=c")
    post(server, "/topic/pause?topic=large")
    defer(server, "large", size.held, lambda: HOUR_MS)
    with meanwhile(lambda: defer(server, "large", 1, lambda: HOUR_MS), 0.02):
        return measure(server, size.seconds)


def unpaused(server: Server, size: Size) -> dict[str, float]:
    """A paused topic passes on what it holds."""
    post(server, "/topic/create?topic=large")
    post(server, "/channel/create?topic=large&channel=c")
    post(server, "/topic/pause?topic=large")
    defer(server, "large", size.held, lambda: HOUR_MS)
    timer = threading.Timer(size.seconds / 5, lambda: post(server, "/topic/unpause?topic=large"))
    timer.start()
    figures = measure(server, size.seconds)
    timer.join()
    return figures


def unknown_fins(server: Server, size: Size) -> dict[str, float]:
    """A client finishes messages that are not in flight; the channel has many consumers, with one each."""
    clients = [Client(server.port) for _ in range(size.consumers)]
    for client in clients:
        client.send(b"SUB large c\n")
        client.ok()
        client.send(b"RDY 1\n")
    with closing(Client(server.port)) as publisher:
        for _ in clients:
            publisher.send(pub("large", b"x"))
            publisher.ok()
    for client in clients:
        if client.frame()[0] != MESSAGE:
            raise SystemExit("stalls.py: a consumer got no message")
    count = (250 << 10) // 21
    fins = b"".join(b"FIN %016x\n" % (0xFFFF << 40 | number * 3) for number in range(count))

    def finish() -> None:
        clients[0].send(fins)
        for _ in range(count):
            clients[0].frame()

    with meanwhile(finish, 0.2):
        figures = measure(server, size.seconds)
    for client in clients:
        client.close()
    return figures


def channels(server: Server, size: Size) -> dict[str, float]:
    """PUBs, 200 a second at most, to a topic with very many channels."""
    with closing(Client(server.port)) as busy:

        def publish() -> None:
            busy.send(pub("large", b"x" * 100))
            busy.ok()

        publish()  # it listens before it has read its topics, and answers after
        with meanwhile(publish, 0.005):
            return measure(server, size.seconds)


def metadata(size: Size) -> str:
    """An nsqd.dat with a topic that has very many channels."""
    named = [{"name": f"channel-{number}", "paused": False} for number in range(size.channels)]
    return json.dumps({"topics": [{"name": "large", "paused": False, "channels": named}], "version": "1.3.0"})


SITUATIONS = (peace, deferred, due, held, unpaused, unknown_fins, channels)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="situations with such a name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--smoke", action="store_true", help="small state and a moment, for the tests")
    arguments = parser.parse_args()
    size = SMOKE if arguments.smoke else Size()
    sides = {"ours": arguments.nsqd, **({"other": arguments.against} if arguments.against else {})}
    result: dict[str, dict[str, dict[str, float]]] = {}
    for situation in SITUATIONS:
        name = situation.__name__
        if arguments.only and not arguments.only.search(name):
            continue
        for who, executable in sides.items():
            known = metadata(size) if situation is channels else ""
            with servers.nsqd(executable, [], None, known) as server:
                figures = situation(server, size)
            result.setdefault(who, {})[name] = figures
            shown = "".join(f"  {key[:-3]} {value:8.2f} ms" for key, value in figures.items())
            print(f"{who:5}  {name:12}{shown}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
