"""Our utilities beside NSQ's own: rates, processor time for a message, and the ratios.

Both run in turn, round after round, between the same two nsqds, with the same flags, so that a busy machine
is busy for both. A rate is from the first messages that are seen to have arrived to nearly the last; the
start of a program does not count. Processor time is all that a program took, its start included. The median
of the rounds counts. A utility that is not there is left out, with a message.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from programs import TOOLS, Job, Place, ended, ours, place, post

FEWER = {"to_nsq": 1, "nsq_to_nsq": 2, "nsq_to_file": 2, "nsq_to_http": 10}  # than --count, to be slow alike
FEWER_FOR_GO = {"to_nsq": 10, "nsq_to_nsq": 5, "nsq_to_file": 2, "nsq_to_http": 4}  # than ours
TARGETS = {"to_nsq": 3.0, "nsq_to_nsq": 3.0, "nsq_to_file": 1.0, "nsq_to_http": 1.0}


@dataclass
class Measurement:
    rates: list[float] = field(default_factory=list)  # messages a second
    costs: list[float] = field(default_factory=list)  # microseconds of processor time for a message


def main() -> int:
    options = parse()
    results: dict[str, dict[str, Measurement]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="tools-bench-") as folder,
        place(options.nsqd, options.nsqd_flags, Path(folder)) as here,
    ):
        for tool in options.only:
            commands = find(tool, options.go_bin)
            results[tool] = {name: Measurement() for name in commands}
            for number in range(options.rounds):
                for name, command in commands.items():
                    count = options.count // FEWER[tool]
                    if name == "go":
                        count //= FEWER_FOR_GO[tool]
                    job = Job(tool, f"{tool}-{name}-{number}", here, options.max_in_flight)
                    rate, cost = measure(job, command, max(count, 1000), options.size)
                    results[tool][name].rates.append(rate)
                    results[tool][name].costs.append(cost)
            show(tool, results[tool])
    if options.json:
        write(options, results)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--go-bin", type=Path, help="the folder with NSQ's own utilities")
    parser.add_argument("--nsqd", type=Path, help="the nsqd to use (default: ours)")
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1_000_000, help="messages; slow utilities get fewer")
    parser.add_argument("--size", type=int, default=200, help="bytes of a message")
    parser.add_argument("--max-in-flight", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--smoke", action="store_true", help="a moment of each: does it all still run?")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.count = 1, 20_000
    options.nsqd_flags = ["--mem-queue-size=10000000"] if options.nsqd else []
    options.nsqd = options.nsqd or Path(sys.executable).parent / "nsqd"
    return options


def find(tool: str, go_bin: Path | None) -> dict[str, list[str]]:
    """The commands that there are, ours and NSQ's own."""
    commands = {"ours": ours(tool)}
    if go_bin is not None:
        go = go_bin / tool
        commands["go"] = [str(go)] if go.exists() else None
    for name, command in commands.items():
        if command is None:
            print(f"{tool} ({name}) is not there: left out", file=sys.stderr)
    return {name: command for name, command in commands.items() if command is not None}


def measure(job: Job, command: list[str], count: int, size: int) -> tuple[float, float]:
    """Messages a second, and microseconds of processor time for a message."""
    lines = job.place.folder / "lines"
    lines.write_bytes((b"x" * size + b"\n") * count)
    job.prepare(lines)
    with lines.open("rb") as stdin:
        process = job.start(command, stdin if job.tool == "to_nsq" else None)
    try:
        began = time.perf_counter()
        seen = [(began, 0)]
        for done in job.wait(process, count, count):
            # The last messages may wait for more, or for a time to be over: they do not count.
            if seen[-1][1] < done and seen[-1][1] < count - job.max_in_flight:
                seen.append((time.perf_counter(), done))
        if job.tool != "to_nsq":
            process.terminate()
        cpu = ended(process)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    clean(job.place, job.topic)
    # A run that was over at the first look is measured from the start of the program.
    (first, before), (last, done) = seen[1 if len(seen) > 2 else 0], seen[-1]
    return (done - before) / (last - first), cpu / count * 1e6


def clean(here: Place, topic: str) -> None:
    for server in (here.source, here.destination):
        if here.stats(server, topic)["message_count"] or here.stats(server, topic)["depth"]:
            post(server.http_port, f"/topic/delete?topic={topic}")
    for path in here.folder.glob(f"{topic}*"):
        path.unlink()


def show(tool: str, measured: dict[str, Measurement]) -> None:
    if not measured:
        return
    print(f"\n{tool}")
    for name, each in measured.items():
        rate, cost = median(each.rates), median(each.costs)
        print(f"  {name:5} {rate:12,.0f} msg/s {cost:8.2f} µs of processor a message")
    if len(measured) == 2:
        rate = median(measured["ours"].rates) / median(measured["go"].rates)
        cost = median(measured["ours"].costs) / median(measured["go"].costs)
        target = f"{TARGETS[tool]:g}" + ("" if rate >= TARGETS[tool] else ", MISSED")
        print(f"  {rate:.2f} times the rate (target {target}), {cost:.2f} of the processor time")


def write(options: argparse.Namespace, results: dict[str, dict[str, Measurement]]) -> None:
    document = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "size": options.size,
        "max_in_flight": options.max_in_flight,
        "rates": {tool: {name: each.rates for name, each in both.items()} for tool, both in results.items()},
        "costs_us": {
            tool: {name: each.costs for name, each in both.items()} for tool, both in results.items()
        },
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
