"""The pages of one topic, one channel and one node, asked afresh each time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...cluster import ChannelStats
from ..parts.format import duration
from ..parts.rows import has_archive, keeps_log
from ..parts.tables import page_of
from ..site import Site

TOPICS_OF_NODE = 20  # on a page: each has its channels and clients below it


async def topic(site: Site, request: Request) -> Response:
    name = request.path_params["topic"]
    found = await site.cluster.topic(name)
    channels = found.value.channels
    values = {
        "section": "Topics",
        "failures": found.failures,
        "topic": found.value,
        "rate": site.history.rate(("topic", name)),
        "rates": {
            each.channel_name: site.history.rate(("channel", name, each.channel_name)) for each in channels
        },
        "keeps_log": keeps_log(found.value),
        "has_archive": has_archive(found.value),
        "channel_depth": sum(each.depth for each in channels),
        "client_count": sum(each.client_count for each in channels),
        "graphs": site.graphs(request, lambda it, time: it.of_topic(name, found.value.latency, time)),
    }
    return site.render(request, "topic.html", values)


async def channel(site: Site, request: Request) -> Response:
    topic_name, name = request.path_params["topic"], request.path_params["channel"]
    found = await site.cluster.channel(topic_name, name)
    record = found.value or ChannelStats("*", "", topic_name, name, nodes=[], clients=[])
    values = {
        "section": "Topics",
        "failures": found.failures,
        "channel": record,
        "rate": site.history.rate(("channel", topic_name, name)),
        "drain": _drain(site, topic_name, record),
        "graphs": site.graphs(
            request, lambda it, time: it.of_channel(topic_name, name, record.latency, time)
        ),
    }
    return site.render(request, "channel.html", values, 200 if found.value else 404)


def _drain(site: Site, topic_name: str, record: ChannelStats) -> str:
    """When nothing will wait any more, at the speed of the last minute; empty if that is not to be said."""
    chart = site.history.chart(("channel", topic_name, record.channel_name), 13)
    if chart is None or len(chart.times) < 4 or not record.depth or not chart.depth[0] or not chart.depth[-1]:
        return ""
    elapsed = chart.times[-1] - chart.times[0]
    speed = (chart.depth[0] - chart.depth[-1]) / elapsed if elapsed > 0 else 0.0
    return duration(record.depth / speed) if speed > 0 and record.depth / speed < 86400 else ""


async def node(site: Site, request: Request) -> Response:
    found = await site.cluster.node(request.path_params["node"])
    stats = found.value
    channels = [channel for topic in stats.topics for channel in topic.channels]
    page = page_of(
        stats.topics,
        request.query_params,
        {
            "name": lambda topic: topic.topic_name,
            "depth": lambda topic: topic.depth + sum(channel.depth for channel in topic.channels),
            "messages": lambda topic: topic.message_count,
        },
        lambda topic: topic.topic_name,
        per_page=TOPICS_OF_NODE,
    )
    values = {
        "section": "Nodes",
        "failures": found.failures,
        "node": stats.node,
        "stats": stats,
        "page": page,
        "graphs": site.graphs(request, lambda it, time: it.of_node(stats.node.address, time)),
        "rate": site.history.rate(("node", stats.node.address)),
        "depth": sum(topic.depth for topic in stats.topics) + sum(channel.depth for channel in channels),
        "in_flight": sum(channel.in_flight_count for channel in channels),
        "deferred": sum(channel.deferred_count for channel in channels),
    }
    return site.render(request, "node.html", values)
