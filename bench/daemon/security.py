"""What TLS and compression cost: each layer's throughput as a ratio to plain, in one run.

    python bench/daemon/security.py                          ours alone
    python bench/daemon/security.py --against PATH_TO_NSQD   with the other's ratios beside ours
    python bench/daemon/security.py --against OLD --same-flags   an earlier nsquark

Within each round every nsqd takes its turn with every layer, each time as a fresh process with empty data.
The generator is the same for all: what it publishes is compressed beforehand, so that its own time hardly
counts; what it consumes it decodes, as any client must. Messages are 200 bytes of JSON, about a third of that
when they are compressed.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import servers
from contest import OTHER_FLAGS, ROOT, say, shown
from layers import PUBLISHERS, consume, make_certificate, publish, together
from load import LoadError

LAYERS = ["plain", "tls", "snappy", "deflate", "tls+snappy", "tls+deflate"]
MEASURES = {"mpub": "MPUB of 200, 2 connections", "sub": "draining that backlog, RDY 2500"}


@dataclass(slots=True)
class Run:
    contestants: dict[str, tuple[Path, list[str]]]
    data_parent: Path | None
    seconds: float
    figures: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    processor_ns: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)  # nsqd's, a message

    def round(self, layers: list[str]) -> None:
        for layer in layers:
            for who, (executable, flags) in self.contestants.items():
                with servers.nsqd(executable, flags, self.data_parent) as server:
                    began = server.processor_seconds()
                    count, published = together(PUBLISHERS, publish, server.port, layer, self.seconds)
                    middle = server.processor_seconds()
                    got, consumed = together(1, consume, server.port, layer, self.seconds, count)
                    ended = server.processor_seconds()
                for measure, figure, spent in (
                    ("mpub", published, (middle - began) / max(count, 1)),
                    ("sub", consumed, (ended - middle) / max(got, 1)),
                ):
                    self.figures.setdefault((who, layer, measure), []).append(figure)
                    self.processor_ns.setdefault((who, layer, measure), []).append(spent * 1e9)
                    say(f"{who:5}  {layer:12}  {measure:5}  {shown(figure)} msg/s  {spent * 1e9:6.0f} ns")

    def figure(self, who: str, layer: str, measure: str) -> float:
        return median(self.figures[who, layer, measure])

    def table(self, layers: list[str]) -> Iterator[str]:
        for measure, title in MEASURES.items():
            yield f"{title}, msg/s, the ratio to plain, and nsqd's processor time a message"
            for layer in layers:
                cells = [f"  {layer:12}"]
                for who in self.contestants:
                    figure = self.figure(who, layer, measure)
                    ratio = figure / self.figure(who, "plain", measure)
                    spent = median(self.processor_ns[who, layer, measure])
                    cells.append(f"{who} {shown(figure):>10}  {ratio:5.2f}  {spent:6.0f} ns")
                yield "    ".join(cells)


@contextmanager
def contestants(
    ours: Path, other: Path | None, other_flags: list[str]
) -> Iterator[dict[str, tuple[Path, list[str]]]]:
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        flags = make_certificate(Path(folder))
        found = {"ours": (ours, flags)}
        if other:
            found["other"] = (other, [*flags, *other_flags])
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--same-flags", action="store_true", help="the other keeps its files too")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=1, metavar="S", help="length of a run (default 1)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where to make the temporary data folders")
    parser.add_argument("--smoke", action="store_true", help="one very short round, for the tests")
    arguments = parser.parse_args()
    rounds, seconds = (1, 0.2) if arguments.smoke else (arguments.rounds, arguments.seconds)
    other_flags = [] if arguments.same_flags else OTHER_FLAGS
    with contestants(arguments.nsqd, arguments.against, other_flags) as found:
        run = Run(found, arguments.data, seconds)
        try:
            for _ in range(rounds):
                run.round(LAYERS)
        except LoadError as error:
            print(f"failed: {error}")
            return 1
    print("\n".join(run.table(LAYERS)))
    print(f"\nEach figure is the median of {rounds} round(s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
