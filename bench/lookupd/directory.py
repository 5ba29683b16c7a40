"""How a large directory answers: 50 nsqds with 2,000 topics each, in our nsqlookupd and perhaps another.

    python bench/lookupd/directory.py                               figures of ours alone
    python bench/lookupd/directory.py --against PATH_TO_NSQLOOKUPD  with the other's and the ratios

Every nsqd has the same topics, each with a channel: an answer to /lookup names all nsqds. With --distinct
each has topics of its own. The nsqds are connections of this script, which register as nsqd does.
"""

import argparse
import http.client
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

START_TIMEOUT = 20.0
UNITS = {"registering": "s", "memory": "MB", "per_registration": "B"}  # all others are ms


@dataclass(slots=True)
class Lookupd:
    tcp_port: int
    http_port: int
    process: subprocess.Popen[bytes]

    def rss(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def running(command: list[str]) -> Iterator[Lookupd]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    tcp, web = (listener.getsockname()[1] for listener in held)
    for listener in held:
        listener.close()
    addresses = [f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{web}"]
    process = subprocess.Popen([*command, *addresses, "--log-level=error"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", web)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command[0]} does not listen")
                time.sleep(0.02)
        yield Lookupd(tcp, web, process)
    finally:
        process.kill()
        process.wait()


def register(lookupd: Lookupd, number: int, topics: list[str]) -> socket.socket:
    """An nsqd that has told of its topics, 100 commands at a time."""
    nsqd = socket.create_connection(("127.0.0.1", lookupd.tcp_port))
    nsqd.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    answers = nsqd.makefile("rb")
    document = {
        "broadcast_address": f"nsqd{number}.example",
        "hostname": f"nsqd{number}",
        "http_port": 4151,
        "tcp_port": 4150,
        "version": "1.3.0",
    }
    body = json.dumps(document).encode()
    nsqd.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", answers.read(4))
    answers.read(size)
    for first in range(0, len(topics), 100):
        some = topics[first : first + 100]
        nsqd.sendall("".join(f"REGISTER {topic} archive\n" for topic in some).encode())
        if answers.read(6 * len(some)) != b"\0\0\0\2OK" * len(some):
            sys.exit("a REGISTER was refused")
    return nsqd


def ask(lookupd: Lookupd, paths: list[str], name: str) -> dict[str, float]:
    """The median and the 99th percentile of the time that each takes, one after the other, in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", lookupd.http_port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for path in paths:
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        times.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status}")
    connection.close()
    cuts = quantiles(times, n=100)
    return {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}


def measure(command: list[str], nsqds: int, topics: int, requests: int, distinct: bool) -> dict[str, float]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(running(command))
        before = lookupd.rss()
        began = time.perf_counter()
        names: list[str] = []
        for number in range(nsqds):
            own = [f"topic-{number if distinct else 0}-{topic}" for topic in range(topics)]
            names += own
            stack.enter_context(register(lookupd, number, own))
        figures = {"registering": time.perf_counter() - began}
        step = max(1, len(names) // requests)
        lookups = [f"/lookup?topic={name}" for name in names[::step]][:requests]
        few = max(10, requests // 20)
        figures |= ask(lookupd, lookups, "lookup")
        figures |= ask(lookupd, ["/nodes"] * few, "nodes")
        figures |= ask(lookupd, ["/topics"] * few, "topics")
        grown = lookupd.rss() - before
        figures |= {"memory": lookupd.rss() / 1e6, "per_registration": grown / (2 * nsqds * topics)}
    return figures


def table(figures: dict[str, dict[str, float]]) -> str:
    rows = [["measure", "unit", *figures, *(["ratio"] if "other" in figures else [])]]
    for name in figures["ours"]:
        row = [name, UNITS.get(name, "ms"), *(f"{each[name]:.3g}" for each in figures.values())]
        if "other" in figures:
            row.append(f"{figures['ours'][name] / figures['other'][name]:.3g}")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another nsqlookupd")
    parser.add_argument("--nsqds", type=int, default=50)
    parser.add_argument("--topics", type=int, default=2000, help="of each nsqd")
    parser.add_argument("--requests", type=int, default=2000, help="to /lookup; others get a twentieth")
    parser.add_argument("--distinct", action="store_true", help="no topic is on two nsqds")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--smoke", action="store_true", help="a moment, to see that it all runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.nsqds, arguments.topics, arguments.requests = 3, 20, 20
    size = arguments.nsqds, arguments.topics, arguments.requests, arguments.distinct
    figures = {}
    if arguments.against:
        figures["other"] = measure([str(arguments.against)], *size)
    figures["ours"] = measure([sys.executable, "-m", "nsquark.nsqlookupd"], *size)
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
