"""Publishing in all ways and sizes, and draining what was published."""

from functools import partial

import load
from measuring import Effort, Workload, delivered, drained, metered, published, rate
from servers import Server

# A topic's backlog has to fit into the memory queue of the nsqd we compare with.
LONGEST_BACKLOG = 3.0
# Large bodies fill memory and disks fast.
LONGEST_OF_LARGE = 1.0
LARGE = 100_000
# Before large bodies are measured: the first pages that a server takes of the system, for its heap or its
# files, cost a virtual machine up to ten times what they cost when they come round again.
WARM_UP = 0.3


def backlog(server: Server, effort: Effort, names: tuple[str, str] = ("mpub", "sub")) -> dict[str, float]:
    """Publish in batches to a topic without a channel, then drain it: the first channel gets it all."""
    mpub, sub = names
    figures, cost = metered(server, "pub", min(effort.seconds, LONGEST_BACKLOG), batch=200)
    return {mpub: figures.pub_per_s, f"{mpub}-cpu": cost, **drained(server, sub, figures.published)}


def pipelined(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "pipelined", effort.seconds, batch=1, conns=4, window=64)


def one_from_one(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "one-by-one-1", effort.seconds, batch=1, conns=1)


def one_from_32(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "one-by-one", effort.seconds, batch=1, conns=32)


def one_from_many(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "one-by-one-1000", effort.seconds, batch=1, conns=effort.many_conns)


def http_pub(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "http-pub", effort.seconds, batch=1, conns=32, http=1)


def http_mpub(server: Server, effort: Effort) -> dict[str, float]:
    return published(server, "http-mpub", min(effort.seconds, LONGEST_BACKLOG), batch=200, http=1)


def at_once(server: Server, effort: Effort) -> dict[str, float]:
    return delivered(server, "at-once", effort.seconds, batch=200)


def bodies(server: Server, effort: Effort, name: str, size: int, **options: float) -> dict[str, float]:
    seconds = min(effort.seconds, LONGEST_OF_LARGE)
    options |= {"size": size, "rdy": 50 if size >= LARGE else 2500}
    if size >= LARGE:
        load.run("pubsub", server.port, min(seconds, WARM_UP), **options)
    return delivered(server, name, seconds, **options)


WORKLOADS = [
    Workload(
        backlog,
        [
            *rate("mpub", "MPUB of 200, 2 connections", 2),
            *rate("sub", "draining that backlog, RDY 2500", 8),
        ],
        sink=True,
    ),
    Workload(
        partial(backlog, names=("spill-mpub", "spill-sub")),
        [
            *rate("spill-mpub", "the same, the other with its default flags", 8),
            *rate("spill-sub", "draining that backlog", 8),
        ],
        default_flags=True,
    ),
    Workload(
        pipelined,
        rate("pipelined", "PUB, 64 under way on each of 4 connections", 10),
        sink=True,
    ),
    Workload(one_from_one, rate("one-by-one-1", "PUB one at a time, 1 connection", 1), sink=True),
    Workload(one_from_32, rate("one-by-one", "PUB one at a time, 32 connections", 1.7), sink=True),
    Workload(one_from_many, rate("one-by-one-1000", "PUB one at a time, 1,000 connections", 1.7), sink=True),
    Workload(http_pub, rate("http-pub", "HTTP /pub, 32 connections", 2)),
    Workload(http_mpub, rate("http-mpub", "HTTP /mpub of 200, 2 connections", 2)),
    Workload(at_once, rate("at-once", "MPUB of 200 and consuming at once", 5), sink=True),
    Workload(
        partial(bodies, name="10-B", size=10, batch=200),
        rate("10-B", "the same with 10-byte bodies", None),
    ),
    Workload(
        partial(bodies, name="1-KB", size=1_000, batch=200),
        rate("1-KB", "the same with bodies of 1 KB", None),
    ),
    Workload(
        partial(bodies, name="100-KB", size=100_000, batch=1, window=4),
        rate("100-KB", "PUB and consuming at once, 100 KB", 1.3),
    ),
    Workload(
        partial(bodies, name="1-MB", size=1_000_000, batch=1, window=4),
        rate("1-MB", "PUB and consuming at once, 1 MB", 1.3),
    ),
]
