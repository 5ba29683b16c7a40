"""`python -m reliability.overload [--only NAME] [--small] [--topics N]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from .situations import LIMITS, MEBI, SITUATIONS, SMALL, Result, Size, end_all

HEAD = (
    "situation",
    "number",
    "memory",
    "for each",
    "p99 building",
    "p99 there",
    "start",
    "descriptors",
    "verdict",
)
WIDTHS = (32, 10, 9, 11, 13, 10, 8, 12, 8)


def tried(names: Iterable[str], size: Size) -> Iterator[Result]:
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = SITUATIONS[name](Path(folder), size)
            finally:
                end_all()
        most = LIMITS.get(result.unit)
        # A few of them say nothing about one: the process itself grows a little, too.
        if most is not None and result.after - result.before > 30 * MEBI:
            result.demand(
                result.each <= most, f"{result.each:.0f} bytes for each {result.unit}, {most} are allowed"
            )
        yield result


def line(result: Result) -> str:
    if result.skipped:
        return f"{result.name.ljust(WIDTHS[0])}  skipped: {result.skipped}"
    p99 = [f"{each.p99:.1f} ms" if each is not None else "" for each in (result.building, result.there)]
    cells = (
        result.name,
        f"{result.count}",
        f"{result.after / MEBI:.0f} MiB",
        f"{result.each:.0f} B" if result.unit in LIMITS else "",
        *p99,
        f"{result.start:.1f} s",
        f"{result.descriptors}",
        "failed" if result.faults else "passed",
    )
    return _row(cells)


def _row(cells: Iterable[str]) -> str:
    first, *rest = (cell for cell in cells)
    numbers = (cell.rjust(width) for cell, width in zip(rest, WIDTHS[1:], strict=True))
    return "  ".join([first.ljust(WIDTHS[0]), *numbers])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.overload", description="Too much of everything."
    )
    parser.add_argument("--only", action="append", choices=list(SITUATIONS), help="(may be repeated)")
    parser.add_argument("--small", action="store_true", help="small numbers, as the tests run it")
    parser.add_argument("--topics", type=int, metavar="N", help="how many topics, instead of 50,000")
    arguments = parser.parse_args(argv)
    size = SMALL if arguments.small else Size()
    if arguments.topics:
        size = replace(size, topics=arguments.topics)
    print(_row(HEAD))
    failed = False
    for result in tried(arguments.only or SITUATIONS, size):
        print(line(result), flush=True)
        for fault in result.faults:
            print(f"  fault: {fault}", flush=True)
        failed = failed or bool(result.faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
