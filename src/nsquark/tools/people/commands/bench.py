"""`nsquark bench`: workloads that measure an nsqd, with percentiles and a histogram of latencies."""

from __future__ import annotations

from typing import Any

import click

from nsquark.errors import NsquarkError

from ..bench_workloads import WORKLOADS, Load, Result
from ..cluster.daemons import Daemon
from ..cluster.nsqds import Cluster
from ..failures import Failure, on_one_line, say
from ..flags import quantities
from ..flags.options import SECONDS, SIZE, Command, connecting, json_option
from ..flags.settings import Settings
from ..output import print_json, progress
from ..running import run

_BAR = "▏▎▍▌▋▊▉█"
_WIDTH = 36


@click.command("bench", cls=Command)
@click.argument("workloads", nargs=-1, type=click.Choice(list(WORKLOADS)))
@click.option("--seconds", type=SECONDS, default=3.0, metavar="DURATION", help="For each workload (3s).")
@click.option("--size", type=SIZE, default=200, show_default=True, metavar="SIZE", help="Of a body.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Of an MPUB.")
@click.option("--connections", type=click.IntRange(1, 256), default=4, show_default=True, help="To publish.")
@click.option("--window", type=click.IntRange(1, 2500), default=64, show_default=True, help="PUBs under way.")
@click.option("--rate", type=click.FloatRange(1), default=1000.0, show_default=True, help="Of `latency`.")
@json_option
@connecting
def command(
    workloads: tuple[str, ...],
    seconds: float,
    size: int,
    batch: int,
    connections: int,
    window: int,
    rate: float,
    as_json: bool,
    settings: Settings,
) -> None:
    """Measure an nsqd, ours or Go's, with topics of its own that are deleted afterwards.

    \b
    mpub      publish in batches, on all connections
    sub       consume and finish the messages of mpub
    pub       publish one by one, a window of them unanswered on each connection
    one       publish one by one, waiting for each answer
    fanout    consume what is published in batches on ten channels at once
    latency   from a publish to its delivery, at a constant rate

    It measures nsqd together with this client, which runs on one processor in Python: where nsqd is faster
    than the client, the figures are the client's. They compare servers and settings on one machine; they are
    not the most that an nsqd can do (bench/nsqload.c, written in C, comes nearer to that). A message counts
    when nsqd has answered for it. Latencies of a batch are those of its answer. A workload ends early when
    it has published 500 MB, so that the disk has room.
    """
    load = Load(seconds, size, batch, connections, window, rate)
    chosen = list(dict.fromkeys(workloads)) or ["mpub", "sub", "pub", "one", "latency"]
    bench = Bench(Cluster(settings), load)
    results = run(bench.run(chosen, as_json), bench.interrupted)
    if as_json:
        print_json({"nsqd": bench.told, "results": [result.as_json() for result in results]})


class Bench:
    def __init__(self, cluster: Cluster, load: Load) -> None:
        self._cluster = cluster
        self._load = load
        self._done: list[str] = []
        self._topics: list[str] = []
        self._nsqd: Daemon | None = None
        self.told: dict[str, Any] = {}

    def interrupted(self) -> str:
        done = f"measured {', '.join(self._done)}" if self._done else "nothing was measured"
        left = f"; delete {', '.join(self._topics)} yourself" if self._topics else ""
        return f"interrupted: {done}{left}"

    async def run(self, workloads: list[str], quiet: bool) -> list[Result]:
        nsqd = self._nsqd = (await self._cluster.nsqds())[0]
        settings = self._cluster.settings
        info = await nsqd.get("/info")
        address = settings.nsqd_tcp[0] if settings.nsqd_tcp else await nsqd.tcp_address()
        self.told = {"address": address, "version": info.get("version"), "hostname": info.get("hostname")}
        results: list[Result] = []
        if not quiet:
            print(
                f"nsqd {address}, NSQ {info.get('version')}; bodies of {quantities.size(self._load.size)},"
                f" {self._load.connections} connections, {quantities.age(self._load.seconds)} each"
            )
        try:
            for name in workloads:
                topic = await self._new_topic(name)
                with progress(name, self._load.seconds, not quiet) as update:
                    result = await WORKLOADS[name](address, topic, settings, self._load, update)
                results.append(result)
                self._done.append(name)
                await self._tidy()
                if not quiet:
                    _show(result)
        finally:
            await self._tidy()
        return results

    async def _new_topic(self, workload: str) -> str:
        """A topic that is not there. Its name is always the same, since nsqlookupds remember names."""
        assert self._nsqd is not None
        topic = f"nsquark_bench_{workload}"
        if (await self._nsqd.get("/stats", format="json", topic=topic)).get("topics"):
            raise Failure(f"topic {topic!r} is there: another bench runs, or was killed; delete it then")
        self._topics.append(topic)
        return topic

    async def _tidy(self) -> None:
        assert self._nsqd is not None
        for topic in list(self._topics):
            try:
                await self._nsqd.post("/topic/delete", topic=topic)
            except NsquarkError as error:
                if getattr(error, "status", 0) != 404:
                    say(f"nsquark: topic {topic!r} is left: {on_one_line(error)}")
            self._topics.remove(topic)


def _show(result: Result) -> None:
    lines = [
        f"\n{result.name:8} {result.what}",
        f"         {result.rate:,.0f} messages/s, {quantities.size(result.rate * result.size)}/s",
    ]
    if result.latencies:
        shown = "   ".join(
            f"{name} {quantities.latency(value)}" for name, value in result.percentiles().items()
        )
        lines.append(f"         {shown}")
        for low, high, share in result.histogram():
            between = f"{quantities.latency(low):>8} – {quantities.latency(high):<8}"
            lines.append(f"         {between} {_bar(share)} {share:6.1%}")
    print("\n".join(lines), flush=True)


def _bar(share: float) -> str:
    eighths = round(share * _WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BAR[rest - 1] if rest else "")).ljust(_WIDTH)
