"""Statistics: what `/stats` tells of topics, channels and clients, as JSON and as text.

Both forms come in pieces, a channel at most, so that the caller can pause between them: a large node would
otherwise stand still meanwhile. Each piece is true when it is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from nsquark.gotext import format_duration, nanoseconds
from nsquark.http import pack_json
from nsquark.kernel import KERNEL
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.protocol.connection import Connection
from nsquark.version import BUILT_WITH, NSQ_VERSION, VERSION

from .held import held_back, retention_bytes, retention_time
from .latency import NO_LATENCY, percentiles
from .memory import memory_stats
from .pipeline_reports import PipelineReports

_by_name = attrgetter("name")


@dataclass(slots=True, frozen=True)
class Wanted:
    """Which topic and channel (all, if empty), and whether clients and memory are told."""

    topic: str = ""
    channel: str = ""
    clients: bool = True
    memory: bool = True


def select_topics(broker: Broker, wanted: Wanted) -> list[Topic] | None:
    """The topics by name, or None if one is asked for that is not there.

    With a channel asked for, only the topics that have it.
    """
    if wanted.topic and wanted.topic not in broker.topics:
        return None
    topics = [broker.topics[wanted.topic]] if wanted.topic else sorted(broker.topics.values(), key=_by_name)
    return [topic for topic in topics if not wanted.channel or wanted.channel in topic.channels]


def select_channels(topic: Topic, wanted: Wanted) -> list[Channel]:
    """The channels by name, or the one that is asked for."""
    channels = sorted(topic.channels.values(), key=_by_name)
    return [channel for channel in channels if wanted.channel in ("", channel.name)]


def producers(broker: Broker) -> list[Connection]:
    """Every TCP client that has published."""
    return [connection for connection in broker.connections if connection.pub_counts]


# ---- JSON


def json_pieces(broker: Broker, wanted: Wanted) -> Iterator[str]:
    head = {"version": NSQ_VERSION, "health": broker.health, "start_time": int(broker.start_time)}
    yield pack_json(head)[:-1]
    broker.reports.expire(time.time_ns() // 1_000_000)
    topics = select_topics(broker, wanted)
    if topics is None:
        yield ',"topics":null'
    else:
        yield ',"topics":['
        for number, topic in enumerate(topics):
            yield "," if number else ""
            yield from _topic_json(topic, wanted, broker.reports)
        yield "]"
    if wanted.memory:
        yield f',"memory":{pack_json(memory_stats())}'
    publishers = producers(broker) if wanted.clients and topics is not None else []
    if publishers:
        yield ',"producers":['
        for number, connection in enumerate(publishers):
            yield ("," if number else "") + pack_json(client_stats(connection, wanted.topic))
        yield "]"
    else:
        yield ',"producers":null'
    if broker.archive is not None:
        yield f',"archive":{pack_json(broker.archive.describe())}'
    if broker.group_status is not None:
        yield f',"replica":{pack_json(broker.group_status())}'
    yield f',"nsquark_version":{pack_json(VERSION)},"kernel":{pack_json(KERNEL)}}}'


def _topic_json(topic: Topic, wanted: Wanted, reports: PipelineReports) -> Iterator[str]:
    yield f'{{"topic_name":{pack_json(topic.name)},"channels":['
    for number, channel in enumerate(select_channels(topic, wanted)):
        told = channel_stats(channel, clients=wanted.clients, topic=wanted.topic)
        if pipeline := reports.summary(topic.name, channel.name):
            told["pipeline"] = pipeline
        yield ("," if number else "") + pack_json(told)
    rest = {
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": topic_latency(topic),
        "log_bytes": topic.log.size,
        "log_messages": topic.log.end - topic.log.first,
        "retention_bytes": retention_bytes(topic),
        "retention_time": retention_time(topic),
    }
    files = topic.log.files
    if files is not None and files.store is not None:
        rest["log_archived_bytes"] = files.archived_size
        rest["log_unarchived_bytes"] = files.unarchived_size
    yield "]," + pack_json(rest)[1:]


def channel_stats(channel: Channel, *, clients: bool, topic: str = "") -> dict[str, Any]:
    """A channel; with a topic, of what its clients published only that."""
    told = [client_stats(each.connection, topic) for each in channel.consumers] if clients else None
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": told,
        "paused": channel.paused,
        "e2e_processing_latency": channel_latency(channel),
        "dead_letter_count": channel.dead_count,
        "max_attempts": channel.attempts_limit,
        **held_back(channel)._asdict(),
        "idle_since": int(time.time() - channel.idle / 1e9) if channel.idle else None,
        "hold_timeout": channel.hold_timeout,
        "holds_log": channel.holds_log,
    }


def channel_latency(channel: Channel) -> dict[str, Any]:
    if channel.latency is None:
        return NO_LATENCY
    quantiles = channel.topic.options.e2e_processing_latency_percentile
    return percentiles([channel.latency], quantiles, channel.topic.now())


def topic_latency(topic: Topic) -> dict[str, Any]:
    """The latency of all channels of the topic together."""
    windows = [channel.latency for channel in topic.channels.values() if channel.latency is not None]
    return percentiles(windows, topic.options.e2e_processing_latency_percentile, topic.now())


def client_stats(connection: Connection, topic: str = "") -> dict[str, Any]:
    """A TCP client; with a topic, of what it published only that."""
    session = connection.session
    consumer = session.consumer
    told: dict[str, Any] = {
        "client_id": session.client_id,
        "hostname": session.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": session.state,
        "ready_count": consumer.ready_count if consumer else 0,
        "in_flight_count": consumer.in_flight_count if consumer else 0,
        "message_count": consumer.message_count if consumer else 0,
        "finish_count": consumer.finish_count if consumer else 0,
        "requeue_count": consumer.requeue_count if consumer else 0,
        "connect_ts": int(session.connect_time),
        "sample_rate": session.settings.sample_rate,
        "deflate": session.deflate,
        "snappy": session.snappy,
        "user_agent": session.user_agent,
    }
    held = session.auth.held if session.auth is not None else None
    if held is not None and held.entries:
        told["authed"] = True
        told |= {
            key: value
            for key, value in (("auth_identity", held.identity), ("auth_identity_url", held.identity_url))
            if value
        }
    published = [
        {"topic": name, "count": count}
        for name, count in connection.pub_counts.items()
        if topic in ("", name)
    ]
    if published:
        told["pub_counts"] = published
    tls = session.layers.tls if session.layers is not None and session.tls else None
    told["tls"] = session.tls
    told["tls_cipher_suite"] = tls.cipher_suite if tls is not None else ""
    told["tls_version"] = tls.version if tls is not None else ""
    told["tls_negotiated_protocol"] = ""
    told["tls_negotiated_protocol_is_mutual"] = session.tls
    return told


# ---- text


def text_pieces(broker: Broker, wanted: Wanted, now: float) -> Iterator[str]:
    yield f"nsqd v{NSQ_VERSION} (built w/{BUILT_WITH})\n"
    yield f"start_time {_rfc3339(broker.start_time)}\n"
    yield f"uptime {format_duration(nanoseconds(now - broker.start_time))}\n"
    yield f"\nHealth: {broker.health}\n"
    if wanted.memory:
        yield "\nMemory:\n"
        yield from (f"   {name:<25}\t{value}\n" for name, value in memory_stats().items())
    topics = select_topics(broker, wanted)
    yield "\nTopics:" if topics else "\nTopics: None\n"
    for topic in topics or ():
        yield _topic_line(topic)
        for channel in select_channels(topic, wanted):
            yield _channel_line(channel)
            if wanted.clients:
                connections = [consumer.connection for consumer in channel.consumers]
                yield from _client_lines(connections, wanted.topic, now, indent=8)
    publishers = producers(broker) if wanted.clients and topics is not None else []
    yield "\nProducers:\n" if publishers else "\nProducers: None\n"
    yield from _client_lines(publishers, wanted.topic, now, indent=3)


def _topic_line(topic: Topic) -> str:
    return (
        f"\n{'*P ' if topic.paused else '   '}[{topic.name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency_list(topic_latency(topic))}\n"
    )


def _channel_line(channel: Channel) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
        f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
        f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {_latency_list(channel_latency(channel))}\n"
    )


def _latency_list(latency: dict[str, Any]) -> str:
    return ", ".join(_short_duration(each["value"]) for each in latency["percentiles"] or ())


def _short_duration(ns: int) -> str:
    for least, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if ns > least:
            return f"{ns / least:.1f}{unit}"
    return f"{ns:.1f}ns"


def _client_lines(connections: Iterable[Connection], topic: str, now: float, indent: int) -> Iterator[str]:
    for connection in connections:
        yield " " * indent + _client_line(connection, topic, now) + "\n"


def _client_line(connection: Connection, topic: str, now: float) -> str:
    told = client_stats(connection, topic)
    session = connection.session
    who = f"[V2 {f'{session.hostname}:{session.peer_port} {session.user_agent}':<21}]"
    connected = format_duration(max(0, int(now) - told["connect_ts"]) * 1_000_000_000)
    if "pub_counts" in told:
        total = sum(each["count"] for each in told["pub_counts"])
        topics = ",".join(f"{each['topic']}={each['count']}" for each in told["pub_counts"])
        return f"{who} msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"{who} state: {told['state']} inflt: {told['in_flight_count']:<4} rdy: {told['ready_count']:<4} "
        f"fin: {told['finish_count']:<8} re-q: {told['requeue_count']:<8} msgs: {told['message_count']:<8} "
        f"connected: {connected}"
    )


def _rfc3339(timestamp: float) -> str:
    text = datetime.fromtimestamp(timestamp).astimezone().isoformat(timespec="seconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
