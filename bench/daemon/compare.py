"""Compares our nsqd with another one, workload by workload, on this machine and in one run.

    python bench/daemon/compare.py                          figures of ours alone
    python bench/daemon/compare.py --against PATH_TO_NSQD   with the other's figures and the ratios
    python bench/daemon/compare.py --against OLD --same-flags   an earlier nsquark: with its files, like ours

The two take turns within each round, each time as a fresh process with empty data. The figure of a
measure is the median of its rounds; with a ratio comes the interval in which 95 of 100 such runs would
find it, as far as the rounds tell.
"""

import argparse
import json
import os
import platform
import random
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import load
import servers
from workloads import SMOKE, WORKLOADS, Effort, Measure, Workload

ROOT = Path(__file__).resolve().parents[2]

# Ours keeps its defaults and its files; the other may keep everything in memory.
OTHER_FLAGS = ["--mem-queue-size=10000000"]
DRAWS = 2000


@dataclass(slots=True)
class Contest:
    """Who takes part, and every figure so far: `figures[who][measure]` has one per round."""

    ours: Path
    other: Path | None
    data_parent: Path | None
    other_flags: list[str] = field(default_factory=lambda: OTHER_FLAGS)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def turns(self, workload: Workload) -> Iterator[tuple[str, AbstractContextManager[servers.Server]]]:
        yield "ours", servers.nsqd(self.ours, [], self.data_parent)
        if self.other:
            yield "other", servers.nsqd(self.other, self.other_flags, self.data_parent)
        if workload.sink:
            yield "sink", servers.sink()

    def play(self, workload: Workload, effort: Effort, rounds: int) -> None:
        for number in range(1, rounds + 1):
            for who, starting in self.turns(workload):
                try:
                    with starting as server:
                        figures = workload.run(server, effort)
                except load.LoadError as error:
                    self.errors.append(f"{workload.run.__name__}, {who}, round {number}: {error}")
                    say(self.errors[-1])
                    continue
                for name, figure in figures.items():
                    self.figures.setdefault(who, {}).setdefault(name, []).append(figure)
                    say(f"round {number} of {rounds}  {who:5}  {name:10}  {shown(figure)}")

    def figure(self, who: str, measure: Measure) -> float | None:
        rounds = self.figures.get(who, {}).get(measure.name)
        return median(rounds) if rounds else None

    def ratio(self, measure: Measure) -> float | None:
        ours, other = self.figure("ours", measure), self.figure("other", measure)
        return None if ours is None or not other else ours / other

    def interval(self, measure: Measure) -> tuple[float, float] | None:
        """Where the ratio lies in 95 of 100 draws of the rounds with replacement; None for under four."""
        ours, other = (self.figures.get(who, {}).get(measure.name, []) for who in ("ours", "other"))
        if min(len(ours), len(other)) < 4 or not all(other):
            return None
        draw = random.Random(measure.name)
        ratios = sorted(
            median(draw.choices(ours, k=len(ours))) / median(draw.choices(other, k=len(other)))
            for _ in range(DRAWS)
        )
        return ratios[DRAWS // 40], ratios[-1 - DRAWS // 40]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(contest: Contest, measures: list[Measure]) -> str:
    sides = ["other", "sink", "ours"] if contest.other else ["sink", "ours"]
    rows = [["workload", "unit", *sides, *(["ratio", "95 %", "target", "met"] if contest.other else [])]]
    for measure in measures:
        row = [measure.title, measure.unit, *(shown(contest.figure(who, measure)) for who in sides)]
        if contest.other:
            ratio = contest.ratio(measure)
            bound = ">=" if measure.more_is_better else "<="
            row += [
                "-" if ratio is None else f"{ratio:.3g}",
                "-" if (within := contest.interval(measure)) is None else "{:.3g}–{:.3g}".format(*within),
                f"{bound} {measure.target:g}",
                "-" if ratio is None else "yes" if measure.met(ratio) else "NO",
            ]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def shown(figure: float | None) -> str:
    if figure is None:
        return "-"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def report(contest: Contest, measures: list[Measure], effort: Effort, rounds: int) -> dict[str, object]:
    """Everything a reader needs to judge the figures, ready for JSON."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": "compiled" if os.environ.get("NSQUARK_PURE", "") in ("", "0") else "pure",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "message_size": load.MESSAGE_SIZE,
        "seconds": effort.seconds,
        "idle_conns": effort.idle_conns,
        "rounds": rounds,
        "figure": "median of the rounds",
        "ours": servers.version(contest.ours),
        "other": servers.version(contest.other) if contest.other else None,
        "other_flags": contest.other_flags if contest.other else None,
        "measures": [
            {
                "name": measure.name,
                "title": measure.title,
                "unit": measure.unit,
                "rounds": {
                    who: figures[measure.name]
                    for who, figures in contest.figures.items()
                    if measure.name in figures
                },
                **{who: contest.figure(who, measure) for who in ("other", "sink", "ours")},
                "ratio": (ratio := contest.ratio(measure)),
                "interval": contest.interval(measure),
                "target": measure.target,
                "more_is_better": measure.more_is_better,
                "met": None if ratio is None else measure.met(ratio),
            }
            for measure in measures
        ],
        "errors": contest.errors,
    }


def commit() -> str | None:
    """The commit under test, marked if the tree has changes that are not in it; None outside a checkout."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip() or None


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def raise_file_limit(wanted: int) -> None:
    """Let this process's children open `wanted` files each. Raises SystemExit where that is forbidden."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        hard = max(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    except (ValueError, PermissionError):
        sys.exit(f"compare.py: needs {wanted} open files, see `ulimit -Hn`, or leave `idle` out with --only")


def parse_arguments() -> argparse.Namespace:
    names = ", ".join(measure.name for workload in WORKLOADS for measure in workload.measures)
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog=f"Measures: {names}"
    )
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--same-flags", action="store_true", help="the other keeps its files too")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns for each (default 3)")
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="length of a run (default 3)")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="workloads with such a measure")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where to make the temporary data folders")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--smoke", action="store_true", help="one very short round, for the tests")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    for executable in filter(None, (arguments.nsqd, arguments.against)):
        if not os.access(executable, os.X_OK):
            sys.exit(f"compare.py: no nsqd at {executable}")
    effort, rounds = Effort(arguments.seconds), arguments.rounds
    if arguments.smoke:
        effort, rounds = SMOKE, 1
    workloads = [
        workload
        for workload in WORKLOADS
        if not arguments.only or any(arguments.only.search(measure.name) for measure in workload.measures)
    ]
    if not workloads:
        sys.exit(f"compare.py: no measure matches {arguments.only.pattern!r}")
    measures = [measure for workload in workloads for measure in workload.measures]
    if any(measure.name == "idle" for measure in measures):
        raise_file_limit(effort.idle_conns + 200)
    load.compile_nsqload()

    contest = Contest(arguments.nsqd, arguments.against, arguments.data)
    if arguments.same_flags:
        contest.other_flags = []
    for workload in workloads:
        contest.play(workload, effort, rounds)

    print(table(contest, measures))
    print(f"\nEach figure is the median of {rounds} round(s).")
    if contest.other:
        print("A ratio is our figure divided by the other's.")
    if arguments.smoke:
        print("This was a smoke run: it shows that everything runs, and nothing about speed or memory.")
    if arguments.json:
        arguments.json.write_text(json.dumps(report(contest, measures, effort, rounds), indent=2) + "\n")
    for error in contest.errors:
        print(f"failed: {error}")
    return 1 if contest.errors else 0


if __name__ == "__main__":
    sys.exit(main())
