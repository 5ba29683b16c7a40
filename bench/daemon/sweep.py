"""How throughput and latency go with connections, message size, channels, topics, backlog and rate; as plots.

    python bench/daemon/sweep.py --out FOLDER                          ours alone
    python bench/daemon/sweep.py --out FOLDER --against PATH_TO_NSQD   with the other's line

Every point is the median of its rounds, each on a fresh server; the two nsqds take turns. The plots are SVG,
with logarithmic axes, and `sweep.json` has the figures.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import load
import servers
from contest import OTHER_FLAGS, ROOT, say, shown
from load import LoadError
from measuring import drained, store
from servers import Server

WIDTH, HEIGHT, MARGIN = 560, 340, 60
COLOURS = {"ours": "#c2410c", "other": "#1d4ed8"}
LABELS = {"ours": "nsquark", "other": "the other nsqd"}


@dataclass(slots=True)
class Sweep:
    """One plot: `measure` gives the figure for each of the values on the horizontal axis."""

    name: str
    across: str
    up: str
    values: list[int]
    measure: Callable[[Server, float, int], float]


def connections(server: Server, seconds: float, conns: int) -> float:
    return load.run("pub", server.port, seconds, batch=1, conns=conns).pub_per_s


def sizes(server: Server, seconds: float, size: int) -> float:
    # A batch of 200 as long as that stays under the size of a body that every nsqd takes.
    batch = max(1, min(200, 1_000_000 // (size + 4)))
    figures = load.run(
        "pubsub", server.port, seconds, batch=batch, size=size, rdy=2500 if size < 10_000 else 50
    )
    return figures.sub_per_s * size / 1e6


def channels(server: Server, seconds: float, count: int) -> float:
    return load.run("pubsub", server.port, seconds, batch=200, channels=count).sub_per_s


def topics(server: Server, seconds: float, count: int) -> float:
    """The other has to keep its default flags here: it allocates a memory queue for every topic."""
    server.restart(
        servers.metadata([f"bench{number}" for number in range(count)] if count > 1 else ["bench"], ["ch"])
    )
    return load.run(
        "pubsub", server.port, seconds, batch=1, conns=8, window=64, topics=count, rdy=100
    ).sub_per_s


def backlog(server: Server, seconds: float, count: int) -> float:
    return drained(server, "sub", store(server, count))["sub"]


def memory(server: Server, seconds: float, count: int) -> float:
    """Resident memory with so many messages queued."""
    store(server, count)
    return server.rss() / 1e6


def latency(server: Server, seconds: float, rate: int) -> float:
    figures = load.run("pubsub", server.port, seconds, batch=1, conns=4, rate=rate)
    if not figures.p99_us:
        raise LoadError("no message arrived")
    return figures.p99_us / 1e3


SWEEPS = [
    Sweep("connections", "connections, PUB one at a time", "msg/s", [1, 4, 16, 64, 256, 1000], connections),
    Sweep("size", "bytes of a message", "MB/s through", [10, 100, 1000, 10_000, 100_000, 1_000_000], sizes),
    Sweep("channels", "channels of one topic", "deliveries/s", [1, 3, 10, 30, 100], channels),
    Sweep("topics", "topics, PUB in turn", "deliveries/s", [1, 10, 100, 1000], topics),
    Sweep("backlog", "messages of a backlog", "msg/s drained", [1000, 10_000, 100_000, 1_000_000], backlog),
    Sweep("memory", "messages queued", "MB resident", [1000, 10_000, 100_000, 1_000_000], memory),
    Sweep("latency", "PUB a second", "ms, p99 end to end", [100, 1000, 10_000, 50_000, 100_000], latency),
]


def svg(sweep: Sweep, lines: dict[str, list[tuple[float, float]]]) -> str:
    """The plot of these lines of points, logarithmic both ways."""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points if y > 0]
    left, right = math.log10(min(xs)), math.log10(max(xs))
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)

    def at(x: float, y: float) -> str:
        across = MARGIN + (math.log10(x) - left) / ((right - left) or 1) * (WIDTH - 2 * MARGIN)
        up = HEIGHT - MARGIN - (math.log10(max(y, 10**low)) - low) / (high - low) * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{up:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 15}" text-anchor="middle">{sweep.across}</text>',
        f'<text x="10" y="20">{sweep.up}</text>',
    ]
    for power in range(low, high + 1):
        x, y = at(min(xs), 10.0**power).split(",")
        parts.append(f'<path d="M{x},{y}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{10.0**power:,g}</text>')
    for value in sorted(set(xs)):
        x, y = at(value, 10.0**low).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 16}" text-anchor="middle">{value:,g}</text>')
    for number, (who, points) in enumerate(lines.items()):
        colour = COLOURS[who]
        route = " ".join(at(x, y) for x, y in points)
        parts.append(f'<polyline points="{route}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{MARGIN + 20 + 90 * number}" y="{MARGIN - 12}" fill="{colour}">{LABELS[who]}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def points(
    sweep: Sweep, sides: dict[str, tuple[Path, list[str]]], rounds: int, seconds: float
) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {who: [] for who in sides}
    for value in sweep.values:
        figures: dict[str, list[float]] = {who: [] for who in sides}
        for _ in range(rounds):
            for who, (executable, flags) in sides.items():
                with servers.nsqd(executable, [] if sweep.measure is topics else flags, None) as server:
                    figures[who].append(sweep.measure(server, seconds, value))
        for who, found in figures.items():
            lines[who].append((value, median(found)))
            say(f"{sweep.name}  {value:>9,}  {who:5}  {shown(median(found))} {sweep.up}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the plots go")
    parser.add_argument("--only", nargs="+", choices=[sweep.name for sweep in SWEEPS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=1, metavar="S", help="length of a run (default 1)")
    parser.add_argument("--smoke", action="store_true", help="two points of each, for the tests")
    arguments = parser.parse_args()
    sides = {"ours": (arguments.nsqd, list[str]())}
    if arguments.against:
        sides["other"] = (arguments.against, OTHER_FLAGS)
    rounds, seconds = (1, 0.3) if arguments.smoke else (arguments.rounds, arguments.seconds)
    load.compile_nsqload()
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = {}
    for sweep in SWEEPS:
        if arguments.only and sweep.name not in arguments.only:
            continue
        if arguments.smoke:
            sweep.values = sweep.values[:2]
        try:
            written[sweep.name] = points(sweep, sides, rounds, seconds)
        except LoadError as error:
            print(f"failed: {sweep.name}: {error}")
            return 1
        (arguments.out / f"{sweep.name}.svg").write_text(svg(sweep, written[sweep.name]))
    (arguments.out / "sweep.json").write_text(json.dumps(written, indent=2) + "\n")
    print(f"{len(written)} plots in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
