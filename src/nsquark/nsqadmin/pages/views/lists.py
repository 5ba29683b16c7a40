"""The pages about the whole cluster: topics, nodes, counter, lookup, search; and the data of charts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import dropwhile
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...cluster import Node, NodeTotals, Overview, Replica, TopicTotals
from ...history import CLUSTER, History, Key
from ..parts.tables import page_of
from ..site import HEADERS, Site
from ..snapshot import TOPICS_AT_ONCE, Snapshot

SPARK_POINTS = 48


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    rate: float | None
    depth: int  # of the topic and its channels: what waits
    in_flight: int
    deferred: int
    messages: int
    channels: int
    channels_paused: int
    clients: int
    nodes: int
    paused: bool
    history: History

    @property
    def spark(self) -> str:
        return spark(self.history, ("topic", self.name))


def topic_row(topic: TopicTotals, history: History) -> TopicRow:
    channels = topic.channels.values()
    return TopicRow(
        topic.topic_name,
        history.rate(("topic", topic.topic_name)),
        topic.depth + sum(each.depth for each in channels),
        sum(each.in_flight_count for each in channels),
        sum(each.deferred_count for each in channels),
        topic.message_count,
        len(topic.channels),
        sum(each.paused for each in channels),
        sum(each.client_count for each in channels),
        topic.node_count,
        topic.paused,
        history,
    )


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: Node
    reached: bool
    unhealthy: bool
    replica: Replica | None
    tombstoned: list[str]
    rate: float | None
    depth: int
    in_flight: int
    clients: int
    topics: int
    history: History

    @property
    def name(self) -> str:
        group = f" {self.replica.group}" if self.replica is not None else ""
        return f"{self.node.hostname} {self.node.address}{group}"

    @property
    def spark(self) -> str:
        return spark(self.history, ("node", self.node.address))


def node_row(totals: NodeTotals, history: History) -> NodeRow:
    return NodeRow(
        totals.node,
        totals.failure is None,
        totals.health not in ("", "OK"),
        totals.replica,
        [each.topic for each in totals.node.topics if each.tombstoned],
        history.rate(("node", totals.node.address)),
        totals.depth,
        totals.in_flight_count,
        totals.client_count,
        totals.topic_count,
        history,
    )


def spark(history: History, key: Key) -> str:
    """The points of a small line of the rates of the last minutes; empty where there is nothing to draw."""
    chart = history.chart(key, SPARK_POINTS)
    if chart is None:
        return ""
    return spark_points([value or 0.0 for value in dropwhile(lambda value: value is None, chart.rate)])


def spark_points(values: list[float]) -> str:
    """The points of a line in a box of 96 by 24; empty where there is nothing to draw."""
    highest = max(values, default=0.0)
    if len(values) < 2 or highest <= 0:
        return ""
    step = 96 / (len(values) - 1)
    return " ".join(f"{at * step:.1f},{23 - 21 * value / highest:.1f}" for at, value in enumerate(values))


async def _topic_rows(snapshot: Snapshot, history: History) -> list[TopicRow]:
    topics = snapshot.overview.topics
    rows = []
    for number, topic in enumerate(topics.values()):
        if not number % TOPICS_AT_ONCE:
            await asyncio.sleep(0)  # so that others have their turn
        rows.append(topic_row(topic, history))
    rows += [topic_row(TopicTotals(name), history) for name in snapshot.registered if name not in topics]
    return rows


async def streams(site: Site, request: Request) -> Response:
    snapshot = await site.sampler.snapshot()
    overview, history = snapshot.overview, site.history
    rows = await site.rows_of(snapshot, _topic_rows)
    page = page_of(
        rows,
        request.query_params,
        {
            "name": lambda row: row.name,
            "rate": lambda row: row.rate or 0.0,
            "depth": lambda row: row.depth,
            "in_flight": lambda row: row.in_flight,
            "deferred": lambda row: row.deferred,
            "messages": lambda row: row.messages,
            "channels": lambda row: row.channels,
            "clients": lambda row: row.clients,
            "nodes": lambda row: row.nodes,
        },
        lambda row: row.name,
    )
    values = {
        "section": "Topics",
        "failures": snapshot.failures,
        "page": page,
        "rate": history.rate(CLUSTER),
        "totals": _totals(overview, len(rows)),
    }
    return site.render(request, "streams.html", values)


def _totals(overview: Overview, topics: int) -> dict[str, int]:
    nodes = overview.nodes
    return {
        "topics": topics,
        "channels": sum(len(topic.channels) for topic in overview.topics.values()),
        "depth": sum(node.depth for node in nodes),
        "in_flight_count": sum(node.in_flight_count for node in nodes),
        "deferred_count": sum(node.deferred_count for node in nodes),
        "clients": sum(node.client_count for node in nodes),
        "nodes": len(nodes),
        "nodes_down": sum(node.failure is not None for node in nodes),
    }


async def nodes(site: Site, request: Request) -> Response:
    snapshot = await site.sampler.snapshot()
    rows = [node_row(each, site.history) for each in snapshot.overview.nodes]
    page = page_of(
        rows,
        request.query_params,
        {
            "name": lambda row: row.name,
            "version": lambda row: row.node.version,
            "group": lambda row: row.replica.group if row.replica is not None else "",
            "rate": lambda row: row.rate or 0.0,
            "depth": lambda row: row.depth,
            "in_flight": lambda row: row.in_flight,
            "clients": lambda row: row.clients,
            "topics": lambda row: row.topics,
        },
        lambda row: row.name,
    )
    values = {
        "section": "Nodes",
        "failures": snapshot.failures,
        "page": page,
        "has_groups": any(row.replica is not None for row in rows),
    }
    return site.render(request, "nodes.html", values)


async def counter(site: Site, request: Request) -> Response:
    snapshot = await site.sampler.snapshot()
    total = sum(
        channel.message_count
        for topic in snapshot.overview.topics.values()
        for channel in topic.channels.values()
    )
    values = {
        "section": "Counter",
        "failures": snapshot.failures,
        "total": total,
        "graphs": site.graphs(request, lambda it, time: it.of_cluster(time)),
        "rate": site.history.rate(CLUSTER),
    }
    return site.render(request, "counter.html", values)


async def lookup(site: Site, request: Request) -> Response:
    found = await site.cluster.inactive_topics()
    values = {
        "section": "Lookup",
        "failures": found.failures,
        "lookupds": site.cluster.nsqlookupds,
        "dead": {failure.address for failure in found.failures},
        "inactive": found.value,
    }
    return site.render(request, "lookup.html", values)


async def history(site: Site, request: Request) -> Response:
    """The columns of a chart: `of` is a key, its parts percent-encoded, with slashes between."""
    key = tuple(unquote(part) for part in request.query_params.get("of", "").split("/"))
    chart = site.history.chart(key)
    if chart is None:
        return JSONResponse({"message": "NO_HISTORY"}, 404, headers=HEADERS)
    return JSONResponse(chart.to_json(), headers=HEADERS)
