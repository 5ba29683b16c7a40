"""The words of the suite: how much to do, a measure, a workload, and processor time a message.

A workload loads one fresh server and returns a figure per measure, keyed by the measure's name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import load
from load import LoadError
from servers import Server

DRAIN_TIMEOUT = 120.0


@dataclass(slots=True)
class Effort:
    """How much to do: a full run, or a smoke run that only shows that everything still works."""

    seconds: float
    idle_conns: int = 10_000
    many_conns: int = 1_000
    queued: int = 1_500_000
    in_flight: int = 100_000
    stored: int = 400_000  # messages of a backlog that is read from files
    storm: int = 20_000  # messages of a storm
    topics: int = 1_000
    many_topics: int = 10_000
    log_mb: int = 200
    settle: float = 2.0


SMOKE = Effort(
    seconds=0.3,
    idle_conns=20,
    many_conns=50,
    queued=1_000,
    in_flight=500,
    stored=2_000,
    storm=500,
    topics=20,
    many_topics=50,
    log_mb=1,
    settle=0.1,
)


@dataclass(slots=True)
class Measure:
    """One line of the table: `target` bounds ours divided by the other's, if there is one."""

    name: str
    title: str
    unit: str
    target: float | None
    more_is_better: bool

    def met(self, ratio: float) -> bool | None:
        if self.target is None:
            return None
        return ratio >= self.target if self.more_is_better else ratio <= self.target


@dataclass(slots=True)
class Workload:
    """`sink`: a server that stores nothing says something about it. `default_flags`: the other keeps its own.

    `certified`: the nsqds need a certificate.
    """

    run: Callable[[Server, Effort], dict[str, float]]
    measures: list[Measure]
    sink: bool = False
    default_flags: bool = False
    certified: bool = False


def rate(name: str, title: str, target: float | None) -> list[Measure]:
    """The measures of a rate: itself, and the processor time beside it, which other load disturbs least."""
    return [
        Measure(name, title, "msg/s", target, True),
        Measure(f"{name}-cpu", "  processor time a message", "µs", 1 / 3, False),
    ]


def metered(server: Server, mode: str, seconds: float, **options: float | str) -> tuple[load.Figures, float]:
    """What nsqload found, and the server's processor time in microseconds for each message.

    A message counts where it ends: delivered if the run consumes, otherwise published.
    """
    before = server.processor_seconds()
    port = server.http_port if options.get("http") else server.port
    figures = load.run(mode, port, seconds, **options)
    spent = server.processor_seconds() - before
    return figures, spent * 1e6 / max(figures.consumed or figures.published, 1)


def published(server: Server, name: str, seconds: float, **options: float | str) -> dict[str, float]:
    """The figures of a workload that only publishes."""
    figures, cost = metered(server, "pub", seconds, **options)
    return {name: figures.pub_per_s, f"{name}-cpu": cost}


def delivered(server: Server, name: str, seconds: float, **options: float | str) -> dict[str, float]:
    """The figures of a workload that publishes and consumes at once: deliveries are counted."""
    figures, cost = metered(server, "pubsub", seconds, **options)
    if not figures.consumed:
        raise LoadError("no message arrived")
    return {name: figures.sub_per_s, f"{name}-cpu": cost}


def store(server: Server, count: int, topic: str = "bench") -> int:
    """Publish `count` messages or a few more, in batches; how many. Raises LoadError if it takes too long."""
    done = load.run("pub", server.port, DRAIN_TIMEOUT, batch=200, count=count, topic=topic).published
    if done < count:
        raise LoadError(f"{done} of {count} messages published after {DRAIN_TIMEOUT:g} s")
    return done


def drained(
    server: Server, name: str, count: int, topic: str = "bench", **options: float | str
) -> dict[str, float]:
    """The figures of consuming `count` deliveries. Raises LoadError if they do not come in time."""
    flags = {"rdy": 2500, "count": count, "topic": topic, **options}
    figures, cost = metered(server, "sub", DRAIN_TIMEOUT, **flags)
    if figures.consumed < count:
        raise LoadError(f"{figures.consumed} of {count} messages after {DRAIN_TIMEOUT:g} s")
    return {name: figures.sub_per_s, f"{name}-cpu": cost}
