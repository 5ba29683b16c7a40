"""What is in files: a backlog read cold and warm, and how long nsqd takes to start."""

import load
from measuring import Effort, Measure, Workload, drained, rate, store
from servers import Server, metadata


def stored_backlog(server: Server, effort: Effort) -> dict[str, float]:
    """Two topics with a backlog, and a restart: one is drained without the page cache, one with it."""
    cold, warm = store(server, effort.stored, "cold"), store(server, effort.stored, "warm")
    server.stop()
    server.evict_files()
    server.start()
    figures = drained(server, "cold", cold, "cold")
    server.read_files()
    return figures | drained(server, "warm", warm, "warm")


def start_large(server: Server, effort: Effort) -> dict[str, float]:
    """From the start of the process until it answers, with so many megabytes of unread messages."""
    count = effort.log_mb * 1_000_000 // load.MESSAGE_SIZE
    store(server, count)
    server.stop()
    return {"start-large": server.start()}


def start_many(server: Server, effort: Effort) -> dict[str, float]:
    """The same with so many empty topics of a channel each, which the process has had open once before."""
    server.restart(metadata([f"topic{number}" for number in range(effort.many_topics)], ["ch"]))
    server.kill()  # it has nothing to write
    return {"start-many": server.start()}


WORKLOADS = [
    Workload(
        stored_backlog,
        [
            *rate("cold", "draining after a restart, files not in the page cache", None),
            *rate("warm", "draining after a restart, files in the page cache", None),
        ],
    ),
    Workload(start_large, [Measure("start-large", "start with a large log (--log-mb)", "s", None, False)]),
    Workload(
        start_many,
        [Measure("start-many", "start with 10,000 topics", "s", None, False)],
        default_flags=True,
    ),
]
