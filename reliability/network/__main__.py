"""`python -m reliability.network [--only NAME] [--small]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from reliability.outcome import Outcome, tell

from . import clocks, loopback, partitions
from .loopback import SMALL, Size

TRIALS: dict[str, Callable[[Size], Outcome]] = {
    "slow-readers": loopback.slow_readers,
    "half-open": loopback.half_open,
    "resets": loopback.resets,
    "churn": loopback.churn,
    "clocks": clocks.clock_steps,
    "latency-and-loss": partitions.latency_and_loss,
    "publishers-cut-off": partitions.publishers_cut_off,
    "consumers-cut-off": partitions.consumers_cut_off,
    "short-cuts": partitions.short_cuts,
    "directory-cut-off": partitions.directory_cut_off,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.network", description="A bad network.")
    parser.add_argument("--only", action="append", choices=list(TRIALS), help="this trial (may be repeated)")
    parser.add_argument(
        "--small", action="store_true", help="small numbers and a moment, as the tests run it"
    )
    arguments = parser.parse_args(argv)
    size = SMALL if arguments.small else Size()
    return tell(TRIALS[name](size) for name in arguments.only or TRIALS)


if __name__ == "__main__":
    sys.exit(main())
