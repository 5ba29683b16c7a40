"""Shared by the Spark benchmarks: works that take turns, their costs, and ratios with targets.

On a busy machine the processor time tells more than the elapsed time. It is the sum over this process and all
processes that it has started: Spark, its workers and nsqd.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    seconds: float
    cpu_seconds: float


class Target(NamedTuple):
    """A ratio to reach, or a ratio not to exceed."""

    value: float
    at_least: bool

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.value if self.at_least else ratio <= self.value

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.value:g}"


def cpu_seconds() -> float:
    """The processor time of this process and its descendants, including those that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has just ended
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / _TICK

    def is_ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return sum(seconds for pid, seconds in spent.items() if is_ours(pid))


def measure(work: Callable[[], object]) -> Cost:
    cpu, begin = cpu_seconds(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - begin, cpu_seconds() - cpu)


def take_turns(
    works: Mapping[str, Callable[[], object]], rounds: int, tidy: Callable[[], object] = lambda: None
) -> dict[str, Cost]:
    """The median cost of each work over the rounds, after one round to warm up.

    `tidy` runs after each work and does not count.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            cost = measure(work)
            if number:
                costs[name].append(cost)
            tidy()
    return {
        name: Cost(
            statistics.median(each.seconds for each in found),
            statistics.median(each.cpu_seconds for each in found),
        )
        for name, found in costs.items()
    }


def print_costs(costs: Mapping[str, Cost], messages: int) -> None:
    for name, cost in costs.items():
        rate = messages / cost.seconds / 1e6
        print(
            f"{name:30} {rate:6.2f} M messages/s, {cost.cpu_seconds / messages * 1e6:5.2f} s of CPU a million"
        )


def print_ratios(
    ratios: Mapping[str, float], cpu_ratios: Mapping[str, float], targets: Mapping[str, Target]
) -> None:
    """Print each ratio with its target, if it has one, and by processor time, if that is known."""
    for name, ratio in ratios.items():
        target = targets.get(name)
        verdict = f"{target}: {'met' if target.is_met(ratio) else 'NOT MET'}" if target is not None else ""
        by_cpu = f"by CPU {cpu_ratios[name]:5.2f}" if name in cpu_ratios else ""
        print(f"{name:52} {ratio:5.2f}   {verdict:24} {by_cpu}".rstrip())


def write_json(
    path: Path, costs: Mapping[str, Cost], ratios: Mapping[str, float], cpu_ratios: Mapping[str, float]
) -> None:
    told = {"costs": costs, "ratios": ratios, "cpu_ratios": cpu_ratios}
    path.write_text(json.dumps(told, indent=1))
