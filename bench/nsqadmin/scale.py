"""How nsqadmin answers for a large cluster: 100 nsqds, 5,000 topics, 20,000 channels, each topic on 4 nsqds.

    python bench/nsqadmin/scale.py                              figures of ours alone
    python bench/nsqadmin/scale.py --against PATH_TO_NSQADMIN   with the other's and the ratios
    python bench/nsqadmin/scale.py --dead 1                     an nsqd that has the topic is dead
    python bench/nsqadmin/scale.py --smoke                      a small cluster: does it still run?

The cluster is played by `upstream.py`. Requests go to the two in turn, one at a time. `ms` is the median from
the request to the end of the answer; `cpu` is processor time of nsqadmin per request. What takes a few ms is
asked for ten times as often as what takes longer. `ratio` is of `ms`, `cpu ratio` of `cpu`.

A page of ours comes with its numbers. A page of NSQ's nsqadmin is a shell and the `/api` request that its
script sends afterwards: these two are counted for the other, its scripts and styles for neither.
"""

import argparse
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
START_TIMEOUT = 60.0
SHORT = 5.0  # ms: of a request that is repeated more often, as its figures vary more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@dataclass(slots=True)
class Nsqadmin:
    port: int
    process: subprocess.Popen[bytes]

    def rss(self) -> float:
        """In MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1e3

    def cpu(self) -> float:
        """Processor time of all its threads so far, in ms."""
        # The clock that `clock_getcpuclockid` names, which Python lacks. `/proc` counts ticks of 10 ms.
        return time.clock_gettime((~self.process.pid << 3) | 2) * 1000

    def get_all(self, paths: list[str], *, warned: bool = False) -> tuple[float, int]:
        """As `get`, for several paths one after the other."""
        answers = [self.get(path, warned=warned) for path in paths]
        return sum(took for took, _ in answers), sum(size for _, size in answers)

    def get(self, path: str, *, warned: bool = False) -> tuple[float, int]:
        """How long it takes, in ms, and how many bytes come. A warning is an error unless `warned`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - began) * 1000
        connection.close()
        if answer.status != 200 or (not warned and body[:1] == b"{" and json.loads(body).get("message", "")):
            sys.exit(f"{path}: {answer.status} {body[-300:]!r}")
        return took, len(body)


@contextmanager
def upstream(port: int, *flags: str) -> Iterator[None]:
    command = [sys.executable, str(HERE / "upstream.py"), f"--port={port}", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"listening\n":
            sys.exit("the cluster does not listen")
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def nsqadmin(command: list[str], lookupd: str) -> Iterator[Nsqadmin]:
    port = free_port()
    flags = [f"--http-address=127.0.0.1:{port}", f"--lookupd-http-address={lookupd}", "--log-level=error"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{command[0]} does not listen")
                time.sleep(0.02)
        yield Nsqadmin(port, process)
    finally:
        process.kill()
        process.wait()


def measure(
    running: dict[str, Nsqadmin], paths: dict[str, dict[str, list[str]]], rounds: int, *, warned: bool
) -> list[dict[str, object]]:
    figures: list[dict[str, object]] = []
    for name, asked in paths.items():
        figure: dict[str, object] = {"measure": name}
        times: dict[str, list[float]] = {who: [] for who in running}
        spent = dict.fromkeys(running, 0.0)
        first = [each.get_all(asked[who], warned=warned)[0] for who, each in running.items()]
        first = [each.get_all(asked[who], warned=warned)[0] for who, each in running.items()]
        repeats = rounds * 10 if max(first) < SHORT else rounds
        for _ in range(repeats):
            for who, each in running.items():
                before = each.cpu()
                took, size = each.get_all(asked[who], warned=warned)
                spent[who] += each.cpu() - before
                times[who].append(took)
                figure[f"{who}_bytes"] = size
        for who in running:
            figure[f"{who}_ms"] = median(times[who])
            figure[f"{who}_max"] = max(times[who])
            figure[f"{who}_cpu"] = spent[who] / repeats
        figures.append(figure)
    return figures


def table(figures: list[dict[str, object]], who: list[str]) -> str:
    columns = [f"{each}_{unit}" for each in who for unit in ("ms", "max", "cpu", "bytes")]
    rows = [["measure", *columns, *(["ratio", "cpu ratio"] if len(who) > 1 else [])]]
    for figure in figures:
        row = [str(figure["measure"]), *(f"{figure[column]:.4g}" for column in columns)]
        if len(who) > 1:
            row += [
                f"{float(str(figure[f'ours_{unit}'])) / float(str(figure[f'other_{unit}'])):.2f}"
                for unit in ("ms", "cpu")
            ]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def paths_of(port: int, given: list[str], *, against: bool) -> dict[str, dict[str, list[str]]]:
    """What to measure, and which paths that is for ours and for the other."""
    if given:
        return {path: {"ours": [path], "other": [path]} for path in given}
    pages = {
        "topics": "/topics",
        "topic": "/topics/topic-00017",
        "channel": "/topics/topic-00017/channel-2",
        "nodes": "/nodes",
        "node": f"/nodes/127.1.0.1:{port}",
        "counter": "/counter",
    }
    paths = {name: {"ours": [f"/api{path}"], "other": [f"/api{path}"]} for name, path in pages.items()}
    for name, path in pages.items():
        paths[f"{name} page"] = {"ours": [path], "other": [path, f"/api{path}"]}
    if not against:  # Go asks for every topic in turn: measure that alone, with --path
        paths["inactive"] = {"ours": ["/api/topics?inactive=true"]}
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another nsqadmin")
    parser.add_argument("--nsqds", type=int, default=100)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--channels", type=int, default=4, help="of each topic")
    parser.add_argument("--dead", type=int, default=0, help="nsqds that hang up on every client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--path", action="append", default=[], help="a path to ask for instead (repeatable)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        args.nsqds, args.topics, args.rounds = 5, 20, 1
    port = free_port()
    paths = paths_of(port, args.path, against=bool(args.against))
    commands = {"ours": [sys.executable, "-m", "nsquark.nsqadmin"]}
    if args.against:
        commands["other"] = [str(args.against)]
    with ExitStack() as stack:
        sizes = (
            f"--nsqds={args.nsqds}",
            f"--topics={args.topics}",
            f"--channels={args.channels}",
            f"--dead={args.dead}",
        )
        stack.enter_context(upstream(port, *sizes))
        running = {
            who: stack.enter_context(nsqadmin(command, f"127.0.0.1:{port}"))
            for who, command in commands.items()
        }
        figures = measure(running, paths, args.rounds, warned=bool(args.dead))
        memory = {who: each.rss() for who, each in running.items()}
    print(table(figures, list(running)))
    print("resident: " + ", ".join(f"{who} {each:.0f} MB" for who, each in memory.items()))
    if args.json:
        args.json.write_text(json.dumps({"figures": figures, "memory_mb": memory}, indent=1))


if __name__ == "__main__":
    main()
