"""The search box: topics, channels, nodes and clients that have a text in their names."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from ...cluster import Overview
from ..parts.links import Links
from ..site import Site

MOST_HITS = 50  # of a kind


@dataclass(frozen=True, slots=True)
class Hit:
    name: str
    url: str
    where: str = ""
    detail: str = ""


@dataclass(slots=True)
class Group:
    title: str
    hits: list[Hit] = field(default_factory=list)
    total: int = 0

    def add(self, hit: Hit) -> None:
        self.total += 1
        if len(self.hits) < MOST_HITS:
            self.hits.append(hit)


async def search(site: Site, request: Request) -> Response:
    query = request.query_params.get("q", "").strip()[:200]
    groups: list[Group] = []
    failures = []
    if query:
        found = await site.cluster.overview(clients=True)
        registered = (await site.sampler.snapshot()).registered
        failures = found.failures
        groups = find(found.value, registered, query, site.link)
    return site.render(
        request, "search.html", {"search_query": query, "groups": groups, "failures": failures}
    )


def find(overview: Overview, registered: list[str], query: str, link: Links) -> list[Group]:
    """What matches, in groups that are not empty; names that begin with the text come first."""
    wanted = query.casefold()

    def first(name: str) -> tuple[bool, str]:
        return not name.casefold().startswith(wanted), name

    topics, channels = Group("Topics"), Group("Channels")
    for name in sorted({*overview.topics, *registered}, key=first):
        if wanted in name.casefold():
            topics.add(Hit(name, link.topic(name)))
    matching = [
        channel
        for topic in overview.topics.values()
        for channel in topic.channels.values()
        if wanted in channel.channel_name.casefold()
    ]
    for channel in sorted(matching, key=lambda channel: first(channel.channel_name)):
        url = link.channel(channel.topic_name, channel.channel_name)
        channels.add(Hit(channel.channel_name, url, f"of {channel.topic_name}"))
    nodes = Group("Nodes")
    for each in overview.nodes:
        if wanted in f"{each.node.hostname} {each.node.address}".casefold():
            name = each.node.hostname or each.node.address
            nodes.add(Hit(name, link.node(each.node.address), each.node.address))
    return [group for group in (topics, channels, nodes, _clients(overview, wanted, link)) if group.total]


def _clients(overview: Overview, wanted: str, link: Links) -> Group:
    group = Group("Clients")
    for seen in overview.clients:
        client = seen.client
        texts = (client.hostname, client.client_id, client.user_agent, client.remote_address)
        if any(wanted in text.casefold() for text in texts):
            group.add(
                Hit(
                    client.hostname or client.remote_address,
                    link.channel(seen.topic_name, seen.channel_name),
                    f"{seen.topic_name} / {seen.channel_name}",
                    f"{client.client_id} · {client.user_agent} · {client.remote_address}",
                )
            )
    return group
