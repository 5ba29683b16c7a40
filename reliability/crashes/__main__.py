"""The command `python -m reliability.crashes`."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from .running import Result, run
from .series import Settings

SHOWN = 20  # findings


def main() -> int:
    arguments = _parse()
    settings = Settings(arguments.seconds_per_round, arguments.sync_every, arguments.patience)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    result = asyncio.run(run(arguments.rounds, seed, settings, arguments.nsqd, progress=_show_progress))
    _show(result, arguments)
    return 1 if result.findings else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.crashes",
        description="Kill nsqd under load, again and again, and look for what is lost or comes unexplained.",
    )
    parser.add_argument("--rounds", type=int, default=100, help="lives of nsqd (100)")
    parser.add_argument(
        "--seed", type=int, help="makes the same choices again; the moments are the machine's"
    )
    parser.add_argument(
        "--seconds-per-round", type=float, default=0.08, help="time under load, on average (0.08)"
    )
    parser.add_argument("--sync-every", type=int, help="for nsqd; differs from round to round if not given")
    parser.add_argument(
        "--nsqd", default="", metavar="COMMAND", help="starts the nsqd to try, such as 'nsqd'"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=10.0,
        help="seconds without a message after which it counts as lost (10)",
    )
    return parser.parse_args()


def _show_progress(result: Result) -> None:
    messages = result.counts["messages answered OK"]
    print(
        f"{result.rounds} rounds in {result.seconds:.0f} s, {messages} messages answered OK,"
        f" {result.counts['deliveries']} deliveries, {len(result.findings)} findings",
        flush=True,
    )


def _show(result: Result, arguments: argparse.Namespace) -> None:
    print("\ntried:")
    for what, count in sorted(result.counts.items()):
        print(f"  {count:>9} {what}")
    print(f"{result.rounds} rounds, {1000 * result.seconds / max(1, result.rounds):.0f} ms each")
    if not result.findings:
        print("nothing was lost, nothing came twice or too early without a reason")
        return
    print(f"\n{len(result.findings)} findings:")
    for finding in result.findings[:SHOWN]:
        print(f"  {finding}")
    print("\n".join(["the last lines of nsqd:", *(f"  {line}" for line in result.log)]))
    print(f"data and history: {result.folder}")
    given = [f"--rounds {arguments.rounds}", f"--seed {result.seed}"]
    if arguments.seconds_per_round != 0.08:
        given.append(f"--seconds-per-round {arguments.seconds_per_round}")
    if arguments.sync_every is not None:
        given.append(f"--sync-every {arguments.sync_every}")
    if arguments.nsqd:
        given.append(f"--nsqd '{arguments.nsqd}'")
    print("again: python -m reliability.crashes " + " ".join(given))


if __name__ == "__main__":
    sys.exit(main())
