"""Messages that come again: deferred, requeued, timed out."""

import load
from measuring import DRAIN_TIMEOUT, Effort, Workload, drained, rate, store
from servers import Server

DEFER_MS = 50
REQUEUES = 4
# NSQ's clients may ask for no less than a second.
MSG_TIMEOUT_MS = 1000


def deferred(server: Server, effort: Effort) -> dict[str, float]:
    """DPUBs, and the first channel that gets them; the wait until they are due is in the rate of both."""
    options = {"batch": 1, "conns": 4, "window": 64, "defer": DEFER_MS, "count": effort.storm}
    count = load.run("pub", server.port, DRAIN_TIMEOUT, **options).published
    return drained(server, "deferred", count)


def requeued(server: Server, effort: Effort) -> dict[str, float]:
    """Every message is given back several times before it is finished; every delivery counts."""
    count = store(server, effort.storm)
    return drained(server, "requeued", count * (REQUEUES + 1), requeue=REQUEUES)


def timed_out(server: Server, effort: Effort) -> dict[str, float]:
    """Every message times out once, all of them within moments; the wait for it is in the rate of both."""
    count = store(server, effort.storm)
    options = {"ignore": 1, "msg-timeout": MSG_TIMEOUT_MS, "conns": 10}
    return drained(server, "timed-out", 2 * count, **options)


WORKLOADS = [
    Workload(deferred, rate("deferred", "draining 20,000 deferred by 50 ms", None)),
    Workload(requeued, rate("requeued", "each of 20,000 requeued 4 times, deliveries", None)),
    Workload(timed_out, rate("timed-out", "each of 20,000 timed out once, deliveries", None)),
]
