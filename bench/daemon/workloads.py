"""What is measured, and what it should come to against Go's nsqd with everything in its memory.

A workload loads one fresh server and returns a figure per measure, keyed by the measure's name.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import load
from load import LoadError
from servers import Server

# A topic's backlog has to fit into the memory queue of the nsqd we compare with.
LONGEST_BACKLOG = 3.0
DRAIN_TIMEOUT = 120.0
CONNECT_TIMEOUT = 60.0


@dataclass(slots=True)
class Effort:
    """How much to do: a full run, or a smoke run that only shows that everything still works."""

    seconds: float
    idle_conns: int = 10_000
    queued: int = 1_500_000
    settle: float = 2.0


SMOKE = Effort(seconds=0.3, idle_conns=20, queued=1_000, settle=0.1)


@dataclass(slots=True)
class Measure:
    """One line of the table: `target` bounds ours divided by the other's."""

    name: str
    title: str
    unit: str
    target: float
    more_is_better: bool

    def met(self, ratio: float) -> bool:
        return ratio >= self.target if self.more_is_better else ratio <= self.target


@dataclass(slots=True)
class Workload:
    run: Callable[[Server, Effort], dict[str, float]]
    measures: list[Measure]
    sink: bool = False  # whether a server that stores nothing says something about it


def backlog(server: Server, effort: Effort) -> dict[str, float]:
    """Publish in batches to a topic without a channel, then drain it: the first channel gets it all."""
    pub, pub_cost = _metered(server, "pub", min(effort.seconds, LONGEST_BACKLOG), batch=200)
    sub, sub_cost = _metered(server, "sub", DRAIN_TIMEOUT, rdy=2500, count=pub.published)
    if sub.consumed < pub.published:
        raise LoadError(f"{sub.consumed} of {pub.published} messages after {DRAIN_TIMEOUT:g} s")
    return {"mpub": pub.pub_per_s, "mpub-cpu": pub_cost, "sub": sub.sub_per_s, "sub-cpu": sub_cost}


def pipelined(server: Server, effort: Effort) -> dict[str, float]:
    pub, cost = _metered(server, "pub", effort.seconds, batch=1, conns=4, window=64)
    return {"pipelined": pub.pub_per_s, "pipelined-cpu": cost}


def one_at_a_time(server: Server, effort: Effort) -> dict[str, float]:
    pub, cost = _metered(server, "pub", effort.seconds, batch=1, conns=32)
    return {"one-by-one": pub.pub_per_s, "one-by-one-cpu": cost}


def fan_out(server: Server, effort: Effort) -> dict[str, float]:
    both, cost = _metered(server, "pubsub", effort.seconds, batch=200, channels=10)
    return {"fan-out": both.sub_per_s, "fan-out-cpu": cost}


def latency_busy(server: Server, effort: Effort) -> dict[str, float]:
    p50, p99, cost = _latency_ms(server, effort, rate=20_000)
    return {"p50-busy": p50, "p99-busy": p99, "busy-cpu": cost}


def latency_calm(server: Server, effort: Effort) -> dict[str, float]:
    p50, _, _ = _latency_ms(server, effort, rate=1_000)
    return {"p50-calm": p50}


def _latency_ms(server: Server, effort: Effort, rate: int) -> tuple[float, float, float]:
    """p50, p99, and the processor time of a message in microseconds."""
    both, cost = _metered(server, "pubsub", effort.seconds, batch=1, conns=4, rate=rate)
    if both.p50_us is None or both.p99_us is None:
        raise LoadError("no message arrived")
    return both.p50_us / 1e3, both.p99_us / 1e3, cost


def _metered(server: Server, mode: str, seconds: float, **options: float | str) -> tuple[load.Figures, float]:
    """What nsqload found, and the server's processor time in microseconds for each message.

    A message counts where it ends: delivered if the run consumes, otherwise published.
    """
    before = server.processor_seconds()
    figures = load.run(mode, server.port, seconds, **options)
    spent = server.processor_seconds() - before
    return figures, spent * 1e6 / max(figures.consumed or figures.published, 1)


def idle_memory(server: Server, effort: Effort) -> dict[str, float]:
    """The whole resident memory while the connections are open, what the nsqd had before included."""
    with load.idle(server.port, effort.idle_conns, seconds=CONNECT_TIMEOUT + effort.settle + 30) as clients:
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while server.open_files() < effort.idle_conns and clients.poll() is None:
            if time.monotonic() > deadline:
                raise LoadError(f"not {effort.idle_conns} connections after {CONNECT_TIMEOUT:g} s")
            time.sleep(0.05)
        time.sleep(effort.settle)
        return {"idle": server.rss() / 1e6}


def queued_memory(server: Server, effort: Effort) -> dict[str, float]:
    """How much the nsqd grew for each message that waits in a topic."""
    before, published = server.rss(), 0
    while published < effort.queued:
        published += load.run("pub", server.port, min(effort.seconds, 1.0), batch=200).published
    time.sleep(effort.settle)
    return {"queued": (server.rss() - before) / published}


def processor(name: str) -> Measure:
    """The processor time of the workload before it: what other load on the machine disturbs least."""
    return Measure(name, "  processor time a message", "µs", 1 / 3, False)


WORKLOADS = [
    Workload(
        backlog,
        [
            Measure("mpub", "MPUB of 200, 2 connections", "msg/s", 1.5, True),
            processor("mpub-cpu"),
            Measure("sub", "draining that backlog, RDY 2500", "msg/s", 5, True),
            processor("sub-cpu"),
        ],
        sink=True,
    ),
    Workload(
        pipelined,
        [
            Measure("pipelined", "PUB, 64 under way on each of 4 connections", "msg/s", 6, True),
            processor("pipelined-cpu"),
        ],
        sink=True,
    ),
    Workload(
        one_at_a_time,
        [
            Measure("one-by-one", "PUB one at a time, 32 connections", "msg/s", 1.3, True),
            processor("one-by-one-cpu"),
        ],
        sink=True,
    ),
    Workload(
        fan_out,
        [
            Measure("fan-out", "fan-out to 10 channels, deliveries", "msg/s", 8, True),
            processor("fan-out-cpu"),
        ],
        sink=True,
    ),
    Workload(
        latency_busy,
        [
            Measure("p50-busy", "end to end at 20,000 msg/s, p50", "ms", 1 / 20, False),
            Measure("p99-busy", "end to end at 20,000 msg/s, p99", "ms", 1 / 4, False),
            processor("busy-cpu"),
        ],
    ),
    Workload(latency_calm, [Measure("p50-calm", "end to end at 1,000 msg/s, p50", "ms", 1 / 100, False)]),
    Workload(idle_memory, [Measure("idle", "RSS with 10,000 idle connections", "MB", 0.7, False)]),
    Workload(queued_memory, [Measure("queued", "RSS growth per queued message", "B", 0.2, False)]),
]
