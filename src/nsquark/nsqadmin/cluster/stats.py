"""Topics, channels and clients as nsqd's `/stats` tells them: of one node, or merged over nodes.

A merged record has the node `*`, the sums of the counts, and the records of the nodes in `nodes`. `to_json`
is as `/api` answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from .document import Document, Fields, documents, integer, text
from .latency import NOT_MEASURED, Latency, parse_latency

ALL_NODES = "*"
_place = attrgetter("hostname", "node")


@dataclass(slots=True)
class ClientStats:
    """A consumer's connection. Every text is the client's own choice, but for `node` and `remote_address`."""

    node: str
    remote_address: str
    version: str
    client_id: str
    hostname: str
    user_agent: str
    connect_ts: int
    connected_ns: int
    in_flight_count: int
    ready_count: int
    finish_count: int
    requeue_count: int
    message_count: int
    sample_rate: int
    deflate: bool
    snappy: bool
    authed: bool
    auth_identity: str
    auth_identity_url: str
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "remote_address": self.remote_address,
            "version": self.version,
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "connect_ts": self.connect_ts,
            "connected": self.connected_ns,
            "in_flight_count": self.in_flight_count,
            "ready_count": self.ready_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "message_count": self.message_count,
            "sample_rate": self.sample_rate,
            "deflate": self.deflate,
            "snappy": self.snappy,
            "authed": self.authed,
            "auth_identity": self.auth_identity,
            "auth_identity_url": self.auth_identity_url,
            "tls": self.tls,
            "tls_cipher_suite": self.tls_cipher_suite,
            "tls_version": self.tls_version,
            "tls_negotiated_protocol": self.tls_negotiated_protocol,
            "tls_negotiated_protocol_is_mutual": self.tls_negotiated_protocol_is_mutual,
        }


@dataclass(slots=True)
class ChannelStats:
    node: str
    hostname: str
    topic_name: str
    channel_name: str
    depth: int = 0
    memory_depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    paused: bool = False
    latency: Latency = field(default_factory=Latency)
    # The records of the nodes, of a merged record; None for that of a node.
    nodes: list[ChannelStats] | None = None
    # None where clients were not asked for.
    clients: list[ClientStats] | None = None
    # Of nsquark's nsqd; None of any other.
    dead_letter_count: int | None = None
    max_attempts: int | None = None
    held_messages: int | None = None  # what of the log is kept for the channel
    held_bytes: int | None = None
    idle_since: int | None = None  # seconds since the epoch; None while the channel is read
    holds_log: bool = True

    def add(self, other: ChannelStats) -> None:
        """Merge the record of one more node into this one."""
        assert self.nodes is not None
        self.nodes.append(other)
        self.depth += other.depth
        self.memory_depth += other.memory_depth
        self.backend_depth += other.backend_depth
        self.in_flight_count += other.in_flight_count
        self.deferred_count += other.deferred_count
        self.requeue_count += other.requeue_count
        self.timeout_count += other.timeout_count
        self.message_count += other.message_count
        self.client_count += other.client_count
        self.paused = self.paused or other.paused
        if other.latency is not NOT_MEASURED:
            self.latency.add(other.latency)
        if other.clients is not None:
            self.clients = [*(self.clients or ()), *other.clients]
        if other.dead_letter_count is not None:
            self.dead_letter_count = (self.dead_letter_count or 0) + other.dead_letter_count
        if other.held_messages is not None:
            self.held_messages = (self.held_messages or 0) + other.held_messages
        if other.held_bytes is not None:
            self.held_bytes = (self.held_bytes or 0) + other.held_bytes

    def to_json(self, told: Mapping[int, dict[str, Any]] | None = None) -> dict[str, Any]:
        """`told` may have what records of nodes have been told as already, by their `id`."""
        nodes = self.nodes
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            "channel_name": self.channel_name,
            "depth": self.depth,
            "memory_depth": self.memory_depth,
            "backend_depth": self.backend_depth,
            "in_flight_count": self.in_flight_count,
            "deferred_count": self.deferred_count,
            "requeue_count": self.requeue_count,
            "timeout_count": self.timeout_count,
            "message_count": self.message_count,
            "client_count": self.client_count,
            "nodes": None
            if nodes is None
            else [(told and told.get(id(each))) or each.to_json() for each in nodes],
            "clients": None if self.clients is None else [each.to_json() for each in self.clients],
            "paused": self.paused,
            "e2e_processing_latency": self.latency.to_json(),
        }


@dataclass(slots=True)
class TopicStats:
    node: str
    hostname: str
    topic_name: str
    depth: int = 0
    memory_depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    latency: Latency = field(default_factory=Latency)
    nodes: list[TopicStats] | None = None
    channels: list[ChannelStats] = field(default_factory=list)
    # Of a node that runs nsquark's nsqd; empty of Go's, and of a merged record.
    nsquark_version: str = ""
    # Of nsquark's nsqd; None of any other, and of a merged record.
    log_bytes: int | None = None
    retention_bytes: int | None = None  # below 0 is without limit
    retention_time: int | None = None  # ns
    archived_bytes: int | None = None  # what only its archive has; None without one

    def to_json(self) -> dict[str, Any]:
        """The records of channels on nodes are both in `nodes` and in `channels`, and made once."""
        told: dict[int, dict[str, Any]] = {}
        nodes = None
        if self.nodes is not None:
            nodes = [each.to_json() for each in self.nodes]
            for record, node in zip(self.nodes, nodes, strict=True):
                told.update(zip(map(id, record.channels), node["channels"], strict=True))
        return {
            "node": self.node,
            "hostname": self.hostname,
            "topic_name": self.topic_name,
            "depth": self.depth,
            "memory_depth": self.memory_depth,
            "backend_depth": self.backend_depth,
            "message_count": self.message_count,
            "nodes": nodes,
            "channels": [each.to_json(told) for each in self.channels],
            "paused": self.paused,
            "e2e_processing_latency": self.latency.to_json(),
        }


# ---- merging


def merge_channels(topic: str, channel: str, records: Iterable[ChannelStats]) -> ChannelStats:
    """The sum of the records of nodes. Nodes and clients are sorted by host name."""
    merged = ChannelStats(
        ALL_NODES, "", topic, channel, latency=Latency(topic=topic, channel=channel, host=ALL_NODES), nodes=[]
    )
    nodes = sorted(records, key=_place)
    for record in nodes:
        merged.add(record)
    # The channel is not read if no node has a reader of it.
    idle = [each.idle_since for each in nodes]
    if None not in idle:
        merged.idle_since = max((each for each in idle if each is not None), default=None)
    merged.holds_log = any(each.holds_log for each in nodes)
    if merged.clients is not None:
        merged.clients.sort(key=lambda client: client.hostname)
    return merged


def merge_topics(topic: str, records: Iterable[TopicStats]) -> TopicStats:
    """The sum of the records of nodes, and of their channels. Channels are sorted by name."""
    nodes = sorted(records, key=_place)
    merged = TopicStats(ALL_NODES, "", topic, latency=Latency(topic=topic, host=ALL_NODES), nodes=nodes)
    channels: dict[str, list[ChannelStats]] = {}
    for record in nodes:
        merged.depth += record.depth
        merged.memory_depth += record.memory_depth
        merged.backend_depth += record.backend_depth
        merged.message_count += record.message_count
        merged.paused = merged.paused or record.paused
        if record.latency is not NOT_MEASURED:
            merged.latency.add(record.latency)
        for channel in record.channels:
            channels.setdefault(channel.channel_name, []).append(channel)
    merged.channels = [merge_channels(topic, name, found) for name, found in sorted(channels.items())]
    return merged


# ---- reading


def parse_topics(stats: Document, node: str, hostname: str, now: float) -> list[TopicStats]:
    """The topics of a `/stats` answer. `now` is a Unix time: clients are told how long they are connected."""
    nsquark_version = text(stats, "nsquark_version")
    topics = [_parse_topic(each, node, hostname, int(now)) for each in documents(stats, "topics")]
    for topic in topics:
        topic.nsquark_version = nsquark_version
    return topics


_TOPIC = Fields(topic_name=str, depth=int, backend_depth=int, message_count=int, paused=bool)
_CHANNEL = Fields(
    channel_name=str,
    depth=int,
    backend_depth=int,
    in_flight_count=int,
    deferred_count=int,
    requeue_count=int,
    timeout_count=int,
    message_count=int,
    client_count=int,
    paused=bool,
)
# As `ClientStats` has them: those before `connected_ns`, and those behind it.
_CLIENT = Fields(
    remote_address=str,
    version=str,
    client_id=str,
    hostname=str,
    user_agent=str,
    connect_ts=int,
    in_flight_count=int,
    ready_count=int,
    finish_count=int,
    requeue_count=int,
    message_count=int,
    sample_rate=int,
    deflate=bool,
    snappy=bool,
    authed=bool,
    auth_identity=str,
    auth_identity_url=str,
    tls=bool,
    tls_cipher_suite=str,
    tls_version=str,
    tls_negotiated_protocol=str,
    tls_negotiated_protocol_is_mutual=bool,
)


def _parse_topic(document: Document, node: str, hostname: str, now: int) -> TopicStats:
    name, depth, backend_depth, message_count, paused = _TOPIC.read(document)
    return TopicStats(
        node,
        hostname,
        name,
        depth,
        depth - backend_depth,
        backend_depth,
        message_count,
        paused,
        parse_latency(document.get("e2e_processing_latency")),
        None,
        [_parse_channel(each, node, hostname, name, now) for each in documents(document, "channels")],
        "",
        integer(document, "log_bytes") if "log_bytes" in document else None,
        integer(document, "retention_bytes") if "retention_bytes" in document else None,
        integer(document, "retention_time") if "retention_time" in document else None,
        integer(document, "log_archived_bytes") if "log_archived_bytes" in document else None,
    )


def _parse_channel(document: Document, node: str, hostname: str, topic: str, now: int) -> ChannelStats:
    (
        name, depth, backend_depth, in_flight, deferred, requeued, timed_out, messages, client_count, paused
    ) = _CHANNEL.read(document)  # fmt: skip
    clients = None
    if isinstance(document.get("clients"), list):
        clients = [parse_client(each, node, now) for each in documents(document, "clients")]
    if "client_count" not in document:  # NSQ before 1.2 counts no clients, and lists them
        client_count = len(clients or ())
    return ChannelStats(
        node,
        hostname,
        topic,
        name,
        depth,
        depth - backend_depth,
        backend_depth,
        in_flight,
        deferred,
        requeued,
        timed_out,
        messages,
        client_count,
        paused,
        parse_latency(document.get("e2e_processing_latency")),
        None,
        clients,
        integer(document, "dead_letter_count") if "dead_letter_count" in document else None,
        integer(document, "max_attempts") if "max_attempts" in document else None,
        integer(document, "held_messages") if "held_messages" in document else None,
        integer(document, "held_bytes") if "held_bytes" in document else None,
        (integer(document, "idle_since") or None) if "idle_since" in document else None,
        bool(document.get("holds_log", True)),
    )


def parse_client(document: Document, node: str, now: int) -> ClientStats:
    address, version, client_id, hostname, user_agent, connect_ts, *others = _CLIENT.read(document)
    connected_ns = (now - connect_ts) * 1_000_000_000
    told: list[Any] = [
        node, address, version, client_id, hostname, user_agent, connect_ts, connected_ns, *others
    ]  # fmt: skip
    return ClientStats(*told)
