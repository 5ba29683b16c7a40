"""Python clients of NSQ side by side, against one nsqd: how fast they consume and publish, and the ratios.

Each client runs in a process of its own, in turn, round after round, so that a busy machine is busy for all.
Measured is from the first message to the last answer; connecting and starting Python are not. Publishers keep
a number of publishes under way and wait for the oldest before they send the next. The median of the rounds
counts. For large batches there is also what no client can go beyond: nsqload, which is C and sends the
same bytes again and again, to the same nsqd, with as many unanswered. The others are looked for in this
Python and in the one of `--others` (a virtual environment with what bench/client/requirements.txt names); a
client that is not installed is left out, with a message.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "daemon"))

import load  # noqa: E402
from servers import Server, nsqd  # noqa: E402

CLIENTS = {"nsquark": "nsquark", "pynsq": "nsq", "gnsq": "gnsq", "ansq": "ansq"}  # and their modules
LARGE = "batches-200"
MODES = {
    "consume": "consuming, FIN for each, max_in_flight 2500",
    "publish": "publishing one by one, up to 1000 unanswered",
    "batches-10": "publishing in batches of 10, up to 100 unanswered",
    LARGE: "publishing in batches of 200, up to 5 unanswered",
}
BATCHED = {"batches-10": 5, LARGE: 5}  # these go faster: so many times the messages
TIMEOUT = 300


@dataclass
class Measurement:
    client: str
    mode: str
    rates: list[float]  # messages a second
    costs: list[float]  # microseconds of the client's processor time for a message

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def cost(self) -> float:
        return median(self.costs)


def main() -> int:
    options = parse()
    pythons = find_pythons(options.others)
    for client in CLIENTS.keys() - pythons.keys():
        print(f"{client} is not installed here: left out", file=sys.stderr)
    results = {(client, mode): Measurement(client, mode, [], []) for mode in MODES for client in pythons}
    load.compile_nsqload()
    limits = []
    executable = options.nsqd or Path(sys.executable).parent / "nsqd"
    with nsqd(executable, ["--mem-queue-size=10000000"] if options.nsqd else [], None) as server:
        for round_number in range(options.rounds):
            limits.append(limit(server, options))
            for mode in MODES:
                for client, python in pythons.items():
                    count = counts(client, mode, options)
                    topic = f"{client}-{mode}-{round_number}"
                    if mode == "consume":
                        fill(server.http_port, topic, count, options.size)
                    seconds, cpu = run(client, python, mode, server.port, topic, count, options)
                    results[client, mode].rates.append(count / seconds)
                    results[client, mode].costs.append(cpu / count * 1e6)
                    post(server.http_port, f"/topic/delete?topic={topic}")
    show(results, pythons, median(limits))
    if options.json:
        write(options, results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", type=Path, help="the Python that has the other clients")
    parser.add_argument("--nsqd", type=Path, help="the nsqd to use (default: ours)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200_000, help="messages for nsquark; others get fewer")
    parser.add_argument("--size", type=int, default=200, help="bytes of a message")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--smoke", action="store_true", help="a moment of each: does it all still run?")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.count = 1, 2000
    return options


def find_pythons(others: Path | None) -> dict[str, str]:
    """Which Python has which client."""
    found = {}
    for client, module in CLIENTS.items():
        for python in (sys.executable, str(others) if others and client != "nsquark" else None):
            if python and can_import(python, module):
                found[client] = python
    return found


def can_import(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def counts(client: str, mode: str, options: argparse.Namespace) -> int:
    """Enough for a second or so of each."""
    count = options.count * BATCHED.get(mode, 1)
    if client != "nsquark" and mode != LARGE:
        count //= 10
    if client == "ansq" and mode == "consume":
        count //= 4  # one message at a time
    return max(count // 200, 1) * 200


def run(
    client: str, python: str, mode: str, port: int, topic: str, count: int, options: argparse.Namespace
) -> tuple[float, float]:
    mode, _, batch = mode.partition("-")
    arguments = {
        "mode": mode,
        "address": f"127.0.0.1:{port}",
        "topic": topic,
        "count": count,
        "size": options.size,
        "batch": batch or 1,
        "max-in-flight": 2500,
    }
    command = [python, str(HERE / f"run_{client}.py")]
    command += [f"--{name}={value}" for name, value in arguments.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=os.environ | QUIET)
    if done.returncode:
        raise SystemExit(f"{client} failed at {mode}:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["cpu"]


QUIET = {"PYTHONWARNINGS": "ignore"}


def limit(server: Server, options: argparse.Namespace) -> float:
    """Messages a second that nsqload gets stored in large batches."""
    seconds = 0.2 if options.smoke else 2
    run = load.run(
        "pub", server.port, seconds, batch=200, window=5, conns=1, size=options.size, topic="limit"
    )
    post(server.http_port, "/topic/delete?topic=limit")
    return run.pub_per_s


def fill(port: int, topic: str, count: int, size: int) -> None:
    """A backlog, with a channel that has it."""
    post(port, f"/topic/create?topic={topic}")
    post(port, f"/channel/create?topic={topic}&channel=bench")
    line = b"x" * size + b"\n"
    while count > 0:
        some = min(count, 4_000_000 // len(line))
        post(port, f"/mpub?topic={topic}", line * some)
        count -= some


def post(port: int, path: str, body: bytes = b"") -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method="POST")
    urllib.request.urlopen(request, timeout=60).close()


def show(results: dict[tuple[str, str], Measurement], clients: dict[str, str], most: float) -> None:
    for mode, title in MODES.items():
        print(f"\n{title}")
        ours = results["nsquark", mode]
        for client in clients:
            each = results[client, mode]
            print(f"  {client:8} {each.rate:12,.0f} msg/s {each.cost:8.2f} µs of processor a message")
        others = [results[client, mode] for client in clients if client != "nsquark"]
        if others:
            rate = ours.rate / max(each.rate for each in others)
            cost = min(each.cost for each in others) / ours.cost
            print(
                f"  against the best of the others: {rate:.1f} times the rate, 1/{cost:.1f} of the processor"
            )
            if mode == LARGE:
                times = most / max(each.rate for each in others)
                print(f"  nsqload, which no client can go beyond: {most:,.0f} msg/s, {times:.1f} times")


def write(options: argparse.Namespace, results: dict[tuple[str, str], Measurement]) -> None:
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "size": options.size,
        "rates": {f"{each.client} {each.mode}": each.rates for each in results.values()},
        "costs_us": {f"{each.client} {each.mode}": each.costs for each in results.values()},
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
