"""Resident memory: with idle connections, and its growth for a topic, a channel, a message."""

import json
import time
import urllib.request

import load
from load import LoadError
from measuring import Effort, Measure, Workload, store
from servers import Server, metadata

CONNECT_TIMEOUT = 60.0
RDY = 2500


def idle_memory(server: Server, effort: Effort) -> dict[str, float]:
    """The whole resident memory while the connections are open, what the nsqd had before included."""
    before = server.rss()
    with load.idle(server.port, effort.idle_conns, seconds=CONNECT_TIMEOUT + effort.settle + 30) as clients:
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while server.open_files() < effort.idle_conns and clients.poll() is None:
            if time.monotonic() > deadline:
                raise LoadError(f"not {effort.idle_conns} connections after {CONNECT_TIMEOUT:g} s")
            time.sleep(0.05)
        time.sleep(effort.settle)
        rss = server.rss()
        return {"idle": rss / 1e6, "connection": (rss - before) / effort.idle_conns}


def queued_memory(server: Server, effort: Effort) -> dict[str, float]:
    """How much the nsqd grew for each message that waits in a topic."""
    before = server.rss()
    published = store(server, effort.queued)
    time.sleep(effort.settle)
    return {"queued": (server.rss() - before) / published}


def in_flight_memory(server: Server, effort: Effort) -> dict[str, float]:
    """How much it grows on top of that when consumers hold the messages and do not answer."""
    store(server, effort.in_flight)
    time.sleep(effort.settle)
    before, conns = server.rss(), -(-effort.in_flight // RDY)
    seconds = CONNECT_TIMEOUT + effort.settle + 30
    with load.consuming(server.port, seconds=seconds, conns=conns, rdy=RDY, ignore=1000):
        deadline = time.monotonic() + CONNECT_TIMEOUT
        while (held := in_flight(server)) < effort.in_flight:
            if time.monotonic() > deadline:
                raise LoadError(f"{held} of {effort.in_flight} in flight after {CONNECT_TIMEOUT:g} s")
            time.sleep(0.05)
        time.sleep(effort.settle)
        return {"in-flight": (server.rss() - before) / held}


def in_flight(server: Server) -> int:
    """What `/stats` says of the one channel; 0 while it does not exist."""
    url = f"http://127.0.0.1:{server.http_port}/stats?format=json&topic=bench"
    with urllib.request.urlopen(url, timeout=10) as answer:
        topics = json.load(answer)["topics"]
    return sum(channel["in_flight_count"] for topic in topics for channel in topic["channels"])


def topic_memory(server: Server, effort: Effort) -> dict[str, float]:
    """How much more an nsqd has that starts with so many topics, or with as many channels of one topic."""
    names = [f"name{number}" for number in range(effort.topics)]
    time.sleep(effort.settle)
    sizes = []
    for description in (metadata(["one"], []), metadata(["one", *names], []), metadata(["one"], names)):
        server.restart(description, empty=True)
        time.sleep(effort.settle)
        sizes.append(server.rss())
    without, topics, channels = sizes
    return {"topic": (topics - without) / effort.topics, "channel": (channels - without) / effort.topics}


WORKLOADS = [
    Workload(
        idle_memory,
        [
            Measure("idle", "RSS with 10,000 idle connections", "MB", 0.3, False),
            Measure("connection", "  of it for each", "B", 0.3, False),
        ],
    ),
    Workload(
        topic_memory,
        [
            Measure("topic", "RSS growth per empty topic", "B", None, False),
            Measure("channel", "RSS growth per empty channel", "B", None, False),
        ],
        default_flags=True,
    ),
    Workload(queued_memory, [Measure("queued", "RSS growth per queued message", "B", 0.02, False)]),
    Workload(in_flight_memory, [Measure("in-flight", "RSS growth per message in flight", "B", None, False)]),
]
