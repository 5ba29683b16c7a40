"""Many channels of one topic, and many topics at once."""

from functools import partial

from measuring import Effort, Workload, delivered, rate
from servers import Server, metadata


def fan_out(server: Server, effort: Effort, name: str, channels: int) -> dict[str, float]:
    return delivered(server, name, effort.seconds, batch=200, channels=channels)


def many_topics(server: Server, effort: Effort) -> dict[str, float]:
    """One publisher and one consumer for each of the topics, all of which exist beforehand."""
    server.restart(metadata([f"bench{number}" for number in range(effort.topics)], ["ch"]))
    return delivered(
        server, "many-topics", effort.seconds, batch=1, conns=8, window=64, topics=effort.topics, rdy=100
    )


WORKLOADS = [
    Workload(
        partial(fan_out, name="fan-out", channels=10),
        rate("fan-out", "fan-out to 10 channels, deliveries", 12),
        sink=True,
    ),
    Workload(
        partial(fan_out, name="fan-out-100", channels=100),
        rate("fan-out-100", "fan-out to 100 channels, deliveries", 30),
    ),
    # Go's nsqd allocates the whole memory queue of every topic and channel: large ones are too much here.
    Workload(
        many_topics,
        rate("many-topics", "PUB to 1,000 topics in turn, a consumer each", None),
        default_flags=True,
    ),
]
