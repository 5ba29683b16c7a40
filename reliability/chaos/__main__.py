"""The command `python -m reliability.chaos`."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys

from .group import LEASE, Settings, why_not
from .mutants import MUTANTS
from .running import Result, run

SHOWN = 20  # findings


def main(argv: list[str] | None = None) -> int:
    arguments = _parse(argv)
    reason = why_not()
    if reason:
        print(f"chaos: skipped, {reason}")
        return 0
    settings = Settings(
        arguments.members,
        arguments.ack,
        arguments.min_copies,
        patience=arguments.patience,
        mutant=arguments.mutant or "",
        archive=arguments.archive,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process is left behind
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    result = asyncio.run(run(arguments.failovers, seed, settings, _show_progress))
    _show(result, arguments)
    return 1 if result.findings else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.chaos",
        description="Take the primary of a replica group away under load, again and again, and look for what"
        " is lost, means two things or comes unexplained.",
    )
    parser.add_argument("--failovers", type=int, default=30, help="how many (30)")
    parser.add_argument(
        "--seed", type=int, help="makes the same choices again; the moments are the machine's"
    )
    parser.add_argument("--members", type=int, choices=(2, 3), default=2, help="of the group (2)")
    parser.add_argument("--ack", choices=("written", "synced"), default="written", help="--replica-ack")
    parser.add_argument("--min-copies", type=int, default=1, help="--min-copies of nsqd (1)")
    parser.add_argument(
        "--archive", action="store_true", help="with an archive that all members share, and small segments"
    )
    parser.add_argument("--mutant", choices=list(MUTANTS), help="an nsqd with this fault on purpose")
    parser.add_argument(
        "--patience",
        type=float,
        default=20.0,
        help="seconds without a message after which it counts as lost (20)",
    )
    arguments = parser.parse_args(argv)
    if arguments.failovers < 1:
        parser.error(f"--failovers is {arguments.failovers}, and must be at least 1")
    if not 1 <= arguments.min_copies <= arguments.members:
        parser.error(f"--min-copies is {arguments.min_copies}, and there are {arguments.members} members")
    return arguments


def _show_progress(result: Result) -> None:
    messages = result.counts["messages answered OK"]
    print(
        f"{result.failovers} failovers in {result.seconds:.0f} s, {messages} messages answered OK,"
        f" {result.counts['deliveries']} deliveries, {len(result.findings)} findings",
        flush=True,
    )


def _show(result: Result, arguments: argparse.Namespace) -> None:
    print("\ntried:")
    for what, count in sorted(result.counts.items()):
        print(f"  {count:>9} {what}")
    print(f"{result.failovers} failovers, {result.changes} of them to another member")
    print("time without service after the loss of the primary alone:")
    for line in result.gap_lines():
        print(f"  {line}")
    print(f"  {result.over_promise} longer than the lease and 2 s, which is {LEASE + 2:.0f} s")
    if not result.findings:
        print("nothing was lost, nothing means two messages, nothing came back or too early")
        return
    print(f"\n{len(result.findings)} findings:")
    for finding in result.findings[:SHOWN]:
        print(f"  {finding}")
    print("\n".join(["the last lines of the members:", *(f"  {line}" for line in result.log)]))
    print(f"data and history: {result.folder}")
    given = [f"--failovers {arguments.failovers}", f"--seed {result.seed}"]
    given += [f"--members {arguments.members}", f"--ack {arguments.ack}"]
    given.append(f"--min-copies {arguments.min_copies}")
    if arguments.archive:
        given.append("--archive")
    if arguments.mutant:
        given.append(f"--mutant {arguments.mutant}")
    print("again: python -m reliability.chaos " + " ".join(given))


if __name__ == "__main__":
    sys.exit(main())
