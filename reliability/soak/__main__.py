"""`python -m reliability.soak --minutes 30 [--svg FILE]`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from reliability.outcome import tell

from .run import Plan, draw, soak


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reliability.soak", description="Steady load, for long.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=200, help="messages a second to each of three topics")
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--svg", type=Path, default=Path("soak.svg"), help="where to draw it")
    arguments = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # that nsqd is gone while it restarts
    plan = Plan(arguments.minutes * 60, arguments.rate, arguments.restarts)
    outcome, samples = asyncio.run(soak(plan))
    arguments.svg.write_text(draw(outcome, samples))
    status = tell([outcome])
    print(f"drawn: {arguments.svg}")
    return status


if __name__ == "__main__":
    sys.exit(main())
