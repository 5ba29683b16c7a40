"""`python -m reliability.power --cuts 1000`: power cuts at random moments of the life of a busy nsqd.

A real nsqd works on a data directory while every call that changes something there is recorded. For each cut,
a directory is made as a disk could hold it if the power failed between two calls. Another nsqd starts on that
and is asked whether everything is there that was promised.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from .cuts import MUTANTS, Plan, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="how many power cuts (default 200)")
    parser.add_argument(
        "--seed", type=int, default=1, help="chooses the load and what the disk keeps (default 1)"
    )
    parser.add_argument("--sync-every", type=int, default=1, help="nsqd's flag (default 1)")
    parser.add_argument("--sync-timeout", type=float, default=2.0, help="nsqd's flag, in seconds (default 2)")
    parser.add_argument(
        "--cuts-per-load", type=int, default=250, help="cuts of one recorded load (default 250)"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="of a load (default: as the flags need)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="an nsqd that must be found at fault")
    parser.add_argument("--keep", type=Path, help="a folder for the directories on which nsqd was at fault")
    given = parser.parse_args(arguments)
    # Twice --sync-timeout must pass within a load before anything is old enough to be missed.
    seconds = given.seconds or (2.5 if given.sync_every == 1 else 3 * given.sync_timeout + 2.0)
    plan = Plan(
        given.cuts,
        given.seed,
        given.sync_every,
        given.sync_timeout,
        given.cuts_per_load,
        seconds,
        given.mutant,
        given.keep,
    )
    # Nothing is lost with memory here: the disk is simulated, and a real one would only take time.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="nsquark-power-", dir=memory) as folder:
        outcome = run(plan, Path(folder), print)
    print(outcome)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
