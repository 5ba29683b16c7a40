"""`python -m reliability.replicas [--schedules N] [--seed S] [--mutant NAME]`."""

from __future__ import annotations

import argparse
import sys
import time

from reliability.outcome import Outcome, progress, tell

from .mutants import CORRECT, MUTANTS, Mutant
from .schedule import run_schedule

MOST_FAULTS = 10
_TELL_EVERY = 60.0


def simulate(schedules: int, seed: int, mutant: Mutant = CORRECT, most_faults: int = MOST_FAULTS) -> Outcome:
    """Run the schedules of `seed` and the numbers behind it. A fault names its seed, which repeats it."""
    outcome = Outcome(f"replicas, {mutant.name}")
    steps = answered = acquisitions = fences = lost = ran = 0
    told = time.monotonic()
    for each in range(seed, seed + schedules):
        result = run_schedule(each, mutant)
        ran += 1
        steps += result.steps
        answered += result.answered
        acquisitions += result.acquisitions
        fences += result.fences
        lost += result.lost
        if result.fault:
            outcome.demand(False, f"seed {each} {result.fault}")
            if len(outcome.faults) >= most_faults:
                break
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            progress(f"{ran} schedules, {len(outcome.faults)} faults")
    outcome.figures = {
        "schedules": f"{ran:,}",
        "steps": f"{steps:,}",
        "terms": f"{acquisitions:,}",
        "fences": f"{fences:,}",
        "answered publishes": f"{answered:,}",
        "given up by salvage or force": f"{lost:,}",
    }
    return outcome


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.replicas", description="Replica groups, simulated under faults."
    )
    parser.add_argument("--schedules", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next number")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="put this fault into the automaton first")
    arguments = parser.parse_args(argv)
    if arguments.schedules < 1:
        parser.error(f"--schedules is {arguments.schedules}, and must be at least 1")
    mutant = MUTANTS[arguments.mutant] if arguments.mutant else CORRECT
    return tell([simulate(arguments.schedules, arguments.seed, mutant)])


if __name__ == "__main__":
    sys.exit(main())
