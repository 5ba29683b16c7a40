"""The whole cluster at one moment, for lists and for the history."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..cluster import Cluster, Latency, Overview
from ..history import CLUSTER, Key, Observation, Reading
from ..upstream import Failure, UpstreamError

TOPICS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Snapshot:
    overview: Overview
    failures: list[Failure]
    registered: list[str]  # topics that nsqlookupds know of, also those that no nsqd has


async def take(cluster: Cluster) -> Snapshot:
    """Raises UpstreamError if no node can be found."""
    found, registered = await asyncio.gather(cluster.overview(), _registered(cluster))
    return Snapshot(found.value, found.failures, registered)


async def _registered(cluster: Cluster) -> list[str]:
    if not cluster.nsqlookupds:
        return []
    try:
        return (await cluster.topics()).value
    except UpstreamError:
        return []  # the overview asks the same nsqlookupds and tells that they fail


async def read(snapshot: Snapshot) -> Observation:
    """What of it is charted. The loop has its turns meanwhile."""
    readings: dict[Key, Reading] = {}
    nodes: dict[str, int] = {}
    messages = depth = in_flight = 0
    for each in snapshot.overview.nodes:
        if each.failure is not None:
            continue
        nodes[each.node.address] = each.start_time
        readings["node", each.node.address] = Reading(each.message_count, each.depth, each.in_flight_count)
        messages += each.message_count
        depth += each.depth
        in_flight += each.in_flight_count
    readings[CLUSTER] = Reading(messages, depth, in_flight)
    for number, (name, topic) in enumerate(snapshot.overview.topics.items()):
        if not number % TOPICS_AT_ONCE:
            await asyncio.sleep(0)
        busy, waiting = 0, topic.depth
        for channel in topic.channels.values():
            busy += channel.in_flight_count
            waiting += channel.depth
            readings["channel", name, channel.channel_name] = Reading(
                channel.message_count, channel.depth, channel.in_flight_count, _highest(channel.latency)
            )
        readings["topic", name] = Reading(topic.message_count, waiting, busy, _highest(topic.latency))
    return Observation(nodes, readings)


def _highest(latency: Latency | None) -> float | None:
    if latency is None or not latency.percentiles:
        return None
    highest = max(latency.percentiles, key=lambda each: each.quantile)
    return highest.average if highest.count else None
