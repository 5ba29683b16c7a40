"""The totals of a whole cluster, added up as the nodes answer: what lists, search and history are made of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..upstream import Failure
from .document import Document, as_document, boolean, documents, integer, text
from .latency import Latency, parse_latency
from .nodes import Node
from .replica import Replica, parse_replica
from .stats import ClientStats, parse_client


@dataclass(slots=True)
class ChannelTotals:
    """A channel, summed over nodes."""

    topic_name: str
    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    dead_letter_count: int = 0
    paused: bool = False
    node_count: int = 0
    latency: Latency | None = None  # None where no node measures it


@dataclass(slots=True)
class TopicTotals:
    """A topic, summed over nodes."""

    topic_name: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    node_count: int = 0
    latency: Latency | None = None
    channels: dict[str, ChannelTotals] = field(default_factory=dict)


@dataclass(slots=True)
class NodeTotals:
    """An nsqd, summed over its topics. Without an answer, `failure` says why and the counts are 0."""

    node: Node  # without its topics
    failure: Failure | None = None
    health: str = ""
    start_time: int = 0
    nsquark_version: str = ""  # empty of Go's nsqd
    replica: Replica | None = None  # of a node that is in a replica group
    topic_count: int = 0
    channel_count: int = 0
    depth: int = 0  # of topics and of channels
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0  # of topics
    client_count: int = 0


@dataclass(slots=True)
class SeenClient:
    """A consumer, and the channel it consumes."""

    topic_name: str
    channel_name: str
    client: ClientStats


@dataclass(slots=True)
class Overview:
    """The cluster at the time `taken` (Unix seconds)."""

    taken: float
    nodes: list[NodeTotals]
    topics: dict[str, TopicTotals]
    clients: list[SeenClient]


class OverviewBuilder:
    """Adds up `/stats` answers."""

    def __init__(self, nodes: Sequence[Node], *, with_clients: bool) -> None:
        self._nodes = {node.dial_address: NodeTotals(node) for node in nodes}
        self._topics: dict[str, TopicTotals] = {}
        self._clients: list[SeenClient] = []
        self._with_clients = with_clients
        self._now = time.time()

    def finish(self, failures: Iterable[Failure]) -> Overview:
        """`failures` are those of the nodes."""
        for failure in failures:
            self._nodes[failure.address].failure = failure
        topics = dict(sorted(self._topics.items()))
        return Overview(self._now, list(self._nodes.values()), topics, self._clients)

    def add(self, node: Node, stats: Document) -> None:
        totals = self._nodes[node.dial_address]
        totals.health = text(stats, "health")
        totals.start_time = integer(stats, "start_time")
        totals.nsquark_version = text(stats, "nsquark_version")
        totals.replica = parse_replica(as_document(stats.get("replica")))
        for document in documents(stats, "topics"):
            self._add_topic(totals, document)

    def _add_topic(self, node: NodeTotals, document: Document) -> None:
        name = text(document, "topic_name")
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicTotals(name)
        depth, message_count = integer(document, "depth"), integer(document, "message_count")
        topic.node_count += 1
        topic.depth += depth
        topic.backend_depth += integer(document, "backend_depth")
        topic.message_count += message_count
        topic.paused = topic.paused or boolean(document, "paused")
        topic.latency = _added(topic.latency, document)
        node.topic_count += 1
        node.depth += depth
        node.message_count += message_count
        for each in documents(document, "channels"):
            self._add_channel(node, topic, each)

    def _add_channel(self, node: NodeTotals, topic: TopicTotals, document: Document) -> None:
        name = text(document, "channel_name")
        channel = topic.channels.get(name)
        if channel is None:
            channel = topic.channels[name] = ChannelTotals(topic.topic_name, name)
        depth, in_flight = integer(document, "depth"), integer(document, "in_flight_count")
        deferred, clients = integer(document, "deferred_count"), integer(document, "client_count")
        channel.node_count += 1
        channel.depth += depth
        channel.backend_depth += integer(document, "backend_depth")
        channel.in_flight_count += in_flight
        channel.deferred_count += deferred
        channel.requeue_count += integer(document, "requeue_count")
        channel.timeout_count += integer(document, "timeout_count")
        channel.message_count += integer(document, "message_count")
        channel.client_count += clients
        channel.dead_letter_count += integer(document, "dead_letter_count")
        channel.paused = channel.paused or boolean(document, "paused")
        channel.latency = _added(channel.latency, document)
        node.channel_count += 1
        node.depth += depth
        node.in_flight_count += in_flight
        node.deferred_count += deferred
        node.client_count += clients
        if self._with_clients:
            address, now = node.node.address, int(self._now)
            self._clients += (
                SeenClient(topic.topic_name, name, parse_client(each, address, now))
                for each in documents(document, "clients")
            )


def _added(so_far: Latency | None, document: Document) -> Latency | None:
    reported = document.get("e2e_processing_latency")
    if not isinstance(reported, dict) or not reported.get("percentiles"):
        return so_far  # not measured, as on most clusters: spare every record the merging
    merged = so_far or Latency(host="*")
    merged.add(parse_latency(reported))
    return merged
