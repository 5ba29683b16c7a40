"""What each node of a large cluster has to do: arithmetic on the figures measured on one."""

from __future__ import annotations

from dataclasses import dataclass

# Measured (README, docs/nsqlookupd.md): 200-byte messages, two cores that also ran the load generator.
MPUB_RATE = 1.72e6  # messages a second, published in batches of 200
PUB_RATE = 84e3  # one at a time, each waiting for its answer
DELIVERY_RATE = 3.69e6  # first deliveries with a FIN each
LOOKUP_SECONDS = 0.35e-3 / 50  # of /lookup, for each producer in the answer
IDLE_CONNECTION_BYTES = 76e6 / 10_000
LOOKUP_PRODUCER_BYTES = 190  # of an answer's JSON, for each producer
FRAME_BYTES = 34  # of the log and the wire, beside the body


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: int = 1000
    racks: int = 25
    rate: float = 100e6  # messages a second, published to all of it
    body_bytes: int = 200
    topics: int = 2000
    nodes_per_topic: int = 20
    channels: int = 3  # of each topic
    consumers_per_channel: int = 20  # processes
    lookupds: int = 3
    poll_interval: float = 60.0  # of consumers, at each nsqlookupd
    retention_hours: float = 1.0

    @property
    def consumers(self) -> int:
        return self.topics * self.channels * self.consumers_per_channel


@dataclass(frozen=True, slots=True)
class Load:
    """Of one nsqd, or of one nsqlookupd."""

    node_rate: float
    node_busy: float  # share of the measured two cores, publishing in batches
    node_busy_one_by_one: float  # the same for producers that wait for each answer
    node_in: float  # bytes a second
    node_out: float
    node_disk: float  # bytes, with the retention
    node_connections: float
    lookupd_requests: float  # a second
    lookupd_busy: float  # share of one core
    lookupd_out: float  # bytes a second
    lookupd_registrations: int


def load(cluster: Cluster) -> Load:
    rate = cluster.rate / cluster.nodes
    wire = cluster.body_bytes + FRAME_BYTES
    deliveries = rate * cluster.channels / DELIVERY_RATE
    polls = cluster.consumers / cluster.poll_interval
    # A consumer connects to every node of its topic.
    connections = cluster.consumers * cluster.nodes_per_topic / cluster.nodes
    return Load(
        node_rate=rate,
        node_busy=rate / MPUB_RATE + deliveries,
        node_busy_one_by_one=rate / PUB_RATE + deliveries,
        node_in=rate * cluster.body_bytes,
        node_out=rate * cluster.channels * wire,
        node_disk=rate * wire * cluster.retention_hours * 3600,
        node_connections=connections,
        lookupd_requests=polls,
        lookupd_busy=polls * cluster.nodes_per_topic * LOOKUP_SECONDS,
        lookupd_out=polls * cluster.nodes_per_topic * LOOKUP_PRODUCER_BYTES,
        lookupd_registrations=cluster.topics * cluster.nodes_per_topic * (1 + cluster.channels),
    )


def bounds(cluster: Cluster) -> dict[str, float]:
    """How many times its load each part could take before it is full; the smallest is where it stops."""
    each = load(cluster)
    return {
        "nsqd's processor": 1 / each.node_busy,
        "nsqd's processor, PUB one by one": 1 / each.node_busy_one_by_one,
        "a network of 10 Gbit/s out of a node": 1.25e9 / each.node_out,
        "a disk of 500 MB/s": 500e6 / (each.node_rate * (cluster.body_bytes + FRAME_BYTES)),
        "10,000 connections to a node": 10_000 / each.node_connections,
        "nsqlookupd's processor": 1 / each.lookupd_busy,
        "nsqlookupd's 2,000,000 registrations": 2e6 / each.lookupd_registrations,
    }
