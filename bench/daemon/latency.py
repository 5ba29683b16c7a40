"""End-to-end latency: from the publisher's clock to the consumer's, at a fixed rate."""

from functools import partial

from load import LoadError
from measuring import Effort, Measure, Workload, metered
from servers import Server

PERCENTILES = ("p50", "p99", "p99.9")


def latency(server: Server, effort: Effort, name: str, rate: int) -> dict[str, float]:
    figures, cost = metered(server, "pubsub", effort.seconds, batch=1, conns=4, rate=rate)
    found = (figures.p50_us, figures.p99_us, figures.p999_us)
    if None in found:
        raise LoadError("no message arrived")
    return {
        **{f"{label}-{name}": (us or 0) / 1e3 for label, us in zip(PERCENTILES, found, strict=True)},
        f"{name}-cpu": cost,
    }


def workload(name: str, rate: int, targets: tuple[float | None, ...]) -> Workload:
    title = f"end to end at {rate:,} msg/s"
    measures = [
        Measure(f"{label}-{name}", f"{title}, {label}", "ms", target, False)
        for label, target in zip(PERCENTILES, targets, strict=True)
    ]
    cost = Measure(f"{name}-cpu", "  processor time a message", "µs", 1 / 3, False)
    return Workload(partial(latency, name=name, rate=rate), [*measures, cost])


WORKLOADS = [
    workload("calm", 1_000, (1 / 50, 1 / 20, 1 / 4)),
    workload("busy", 20_000, (1 / 50, 1 / 20, 1 / 4)),
    workload("full", 100_000, (None, None, None)),
]
