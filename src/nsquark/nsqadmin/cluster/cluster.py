"""The cluster, asked afresh by every method: no state, no cache.

With nsqlookupds the nsqds are found through them; without, they are those configured. A method returns what
it found and which daemons failed (`Found`), and raises `UpstreamError` when every daemon of one stage has
failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from nsquark.errors import NsquarkError
from nsquark.nsqadmin.upstream import (
    BegunRequest,
    Daemon,
    Failure,
    Found,
    Upstream,
    UpstreamError,
    nsqd,
    nsqlookupd,
)
from nsquark.nsqadmin.upstream.client import NSQD, NSQLOOKUPD, parse_answer, with_query

from .document import Document, as_document, documents, integer, text, texts
from .nodes import Node, NodeTopic, merge_sightings, parse_info, parse_producer
from .overview import Overview, OverviewBuilder
from .replica import Replica, parse_replica
from .stats import ChannelStats, TopicStats, merge_channels, merge_topics, parse_topics

T = TypeVar("T")

TOPICS_AT_ONCE = 64  # whose channels an nsqlookupd is asked for
PATHS_KEPT = 4096
TOPICS_REMEMBERED = 4096
WHOLE_AT_ONCE = 4  # questions that read the statistics of the whole cluster, each of which may be large


class NodeNotFound(NsquarkError):
    """No nsqd of the cluster has this address."""


@dataclass(slots=True)
class NodeStats:
    """One nsqd: its topics with channels and clients."""

    node: Node
    topics: list[TopicStats]
    health: str
    start_time: int
    nsquark_version: str  # empty of Go's nsqd
    replica: Replica | None = None  # of a node that is in a replica group

    @property
    def total_messages(self) -> int:
        return sum(topic.message_count for topic in self.topics)

    @property
    def total_clients(self) -> int:
        return sum(len(channel.clients or ()) for topic in self.topics for channel in topic.channels)

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node.address,
            "topics": [topic.to_json() for topic in self.topics],
            "total_messages": self.total_messages,
            "total_clients": self.total_clients,
        }


@dataclass(slots=True)
class CounterEntry:
    """How many messages a channel of a node has had."""

    node: str
    topic_name: str
    channel_name: str
    message_count: int

    @property
    def key(self) -> str:
        return f"{self.topic_name}:{self.channel_name}:{self.node}"

    def to_json(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "topic_name": self.topic_name,
            "channel_name": self.channel_name,
            "message_count": self.message_count,
        }


class Cluster:
    """`nsqlookupds` and `nsqds` are `host:port` of HTTP APIs, and may be replaced at any time."""

    def __init__(
        self, upstream: Upstream, nsqlookupds: Sequence[str] = (), nsqds: Sequence[str] = ()
    ) -> None:
        self.upstream = upstream
        self.nsqlookupds = list(nsqlookupds)
        self.nsqds = list(nsqds)
        self._whole = asyncio.Semaphore(WHOLE_AT_ONCE)
        self._reading = asyncio.Lock()
        # The nodes of topics that were asked for lately: where to ask first, and no answer to anything.
        self._seen_with: dict[str, tuple[Daemon, ...]] = {}

    # ---- topics

    async def topics(self) -> Found[list[str]]:
        """The names of all topics, sorted."""
        names: set[str] = set()
        if self.nsqlookupds:
            answers, failures = await self._lookupds("/topics")
            for _, answer in answers:
                names.update(texts(answer, "topics"))
        else:
            found, failures = await self._nsqds(self._stats_of)
            for _, stats in found:
                names.update(text(topic, "topic_name") for topic in documents(stats, "topics"))
        return Found(sorted(names), failures)

    async def inactive_topics(self) -> Found[dict[str, list[str]]]:
        """The topics that no nsqd is known to have, and their channels. None without nsqlookupds."""
        if not self.nsqlookupds:
            return Found({})
        topics, nodes = await asyncio.gather(self.topics(), self.nodes())
        # An nsqlookupd hides a producer from lookups of a topic when it is tombstoned there, so this is what
        # a lookup of every single topic would tell.
        active = {each.topic for node in nodes.value for each in node.topics if not each.tombstoned}
        inactive = [topic for topic in topics.value if topic not in active]
        channels: dict[str, list[str]] = {}
        for start in range(0, len(inactive), TOPICS_AT_ONCE):
            some = inactive[start : start + TOPICS_AT_ONCE]
            channels |= zip(some, await asyncio.gather(*map(self._registered_channels, some)), strict=True)
        return Found(channels, topics.failures or nodes.failures)

    async def _registered_channels(self, topic: str) -> list[str]:
        async def ask(daemon: Daemon) -> Document:
            return as_document(await self.upstream.get_json(daemon, "/channels", {"topic": topic}))

        answers, _ = await self.upstream.each(map(nsqlookupd, self.nsqlookupds), ask)
        return sorted({name for _, answer in answers for name in texts(answer, "channels")})

    async def topic(self, topic: str) -> Found[TopicStats]:
        """A topic merged over its nodes. Without one it is empty, if an nsqlookupd knows of it.

        Raises UpstreamError, whose `not_found` says that no daemon knows the topic.
        """
        found = await self._stats_of_topic(topic)
        merged = merge_topics(topic, (each for each in found.value if each.topic_name == topic))
        return Found(merged, found.failures)

    async def channel(self, topic: str, channel: str) -> Found[ChannelStats | None]:
        """A channel merged over its nodes, with clients; None if the topic is there and the channel is not.

        Raises UpstreamError as `topic` does.
        """
        found = await self._stats_of_topic(topic, channel, clients=True)
        channels = [
            each
            for record in found.value
            if record.topic_name == topic
            for each in record.channels
            if each.channel_name == channel
        ]
        merged = merge_channels(topic, channel, channels) if channels else None
        return Found(merged, found.failures)

    async def _stats_of_topic(
        self, topic: str, channel: str = "", *, clients: bool = False
    ) -> Found[list[TopicStats]]:
        """The records of a topic on its nodes. Raises UpstreamError.

        The nodes that had the topic when it was last asked for are sent their questions together with the
        nsqlookupds, which spares a round trip. Only the answers of nodes that the nsqlookupds name now count.
        """
        path = _stats_path(topic, channel, clients)
        lookups = self.upstream.begin(map(nsqlookupd, self.nsqlookupds), _lookup_path(topic))
        begun = self.upstream.begin(self._seen_with.get(topic, ()), path)
        try:
            found = await self.producers(topic, lookups)
            if not found.value and not self.nsqlookupds:
                raise UpstreamError(NSQD, [])
            nodes = {nsqd(node.dial_address): node for node in found.value}
            self._remember(topic, tuple(nodes))
            answers, failures = await self.upstream.get_json_of(list(nodes), path, begun)
        finally:
            for request in (*lookups.values(), *begun.values()):
                request.give_up()
        if nodes and not answers:
            raise UpstreamError(NSQD, failures)
        now = time.time()
        records = [
            record
            for daemon, answer in answers
            for record in parse_topics(
                as_document(answer), nodes[daemon].address, nodes[daemon].hostname, now
            )
        ]
        return Found(records, found.failures + failures)

    def _remember(self, topic: str, nodes: tuple[Daemon, ...]) -> None:
        seen = self._seen_with
        if seen.pop(topic, None) is None and len(seen) >= TOPICS_REMEMBERED:
            del seen[next(iter(seen))]
        seen[topic] = nodes

    # ---- nodes

    async def nodes(self) -> Found[list[Node]]:
        """Every nsqd with the names of its topics."""
        if self.nsqlookupds:
            return await self._registered_nodes()

        async def ask(daemon: Daemon) -> Node:
            info, stats = await asyncio.gather(self._info_of(daemon), self._stats_of(daemon))
            node = parse_info(info, daemon.address)
            names = sorted(text(topic, "topic_name") for topic in documents(stats, "topics"))
            node.topics = [NodeTopic(name, tombstoned=False) for name in names]
            return node

        answers, failures = await self._nsqds(ask)
        return Found([node for _, node in answers], failures)

    async def node(self, address: str) -> Found[NodeStats]:
        """One nsqd with topics, channels and clients.

        Raises NodeNotFound, and UpstreamError also if this very nsqd does not answer.
        """
        found = await self.find_node(address)
        node = found.value
        answers, failures = await self.upstream.each(
            [nsqd(node.dial_address)], lambda daemon: self._stats_of(daemon, clients=True)
        )
        if failures:
            raise UpstreamError(NSQD, failures)
        stats = answers[0][1]
        topics = parse_topics(stats, node.address, node.hostname, time.time())
        replica, silent = await self._replica_of(node, stats)
        return Found(
            NodeStats(
                node,
                topics,
                text(stats, "health"),
                integer(stats, "start_time"),
                text(stats, "nsquark_version"),
                replica,
            ),
            found.failures + silent,
        )

    async def _replica_of(self, node: Node, stats: Document) -> tuple[Replica | None, list[Failure]]:
        """The group of a node, whose `/stats` says whether it is in one. Other nodes are not asked."""
        brief = parse_replica(as_document(stats.get("replica")))
        if brief is None:
            return None, []
        answers, failures = await self.upstream.get_json_of([nsqd(node.dial_address)], "/replica")
        full = parse_replica(as_document(answers[0][1])) if answers else None
        return full or brief, failures

    async def find_node(self, address: str) -> Found[Node]:
        """The nsqd whose `Node.address` this is. Raises NodeNotFound and UpstreamError."""
        nodes = await self._reachable_nodes()
        for node in nodes.value:
            if node.address == address:
                return Found(node, nodes.failures)
        raise NodeNotFound(f"no nsqd of the cluster has the address {address!r}")

    async def producers(
        self, topic: str, begun: dict[Daemon, BegunRequest] | None = None
    ) -> Found[list[Node]]:
        """The nsqds that have a topic, each once. Raises UpstreamError.

        `begun` may have the lookups that have been sent already, as `Upstream.begin` gives them.
        """
        if not self.nsqlookupds:
            return await self._configured_producers(topic)
        asked = [nsqlookupd(address) for address in self.nsqlookupds]
        answers, failures = await self.upstream.get_json_of(asked, _lookup_path(topic), begun)
        if not answers:
            raise UpstreamError(NSQLOOKUPD, failures)
        nodes: dict[str, Node] = {}
        for _, answer in answers:
            for each in documents(as_document(answer), "producers"):
                node = parse_producer(each, topics=False)
                nodes.setdefault(node.address, node)
        # "Not found" is an answer: a topic need not be registered everywhere.
        return Found(list(nodes.values()), [failure for failure in failures if failure.status != 404])

    async def _configured_producers(self, topic: str) -> Found[list[Node]]:
        async def ask(daemon: Daemon) -> Node | None:
            stats = await self._stats_of(daemon, topic=topic)
            if all(text(each, "topic_name") != topic for each in documents(stats, "topics")):
                return None
            return parse_info(await self._info_of(daemon), daemon.address)

        answers, failures = await self._nsqds(ask)
        return Found([node for _, node in answers if node is not None], failures)

    async def _registered_nodes(self, *, topics: bool = True) -> Found[list[Node]]:
        answers, failures = await self._lookupds("/nodes")
        sightings = [
            (daemon.address, parse_producer(each, topics=topics))
            for daemon, answer in answers
            for each in documents(answer, "producers")
        ]
        return Found(merge_sightings(sightings), failures)

    async def _reachable_nodes(self) -> Found[list[Node]]:
        """Every nsqd, without its topics but for those that are tombstoned."""
        if self.nsqlookupds:
            return await self._registered_nodes(topics=False)

        async def ask(daemon: Daemon) -> Node:
            return parse_info(await self._info_of(daemon), daemon.address)

        answers, failures = await self._nsqds(ask)
        return Found([node for _, node in answers], failures)

    # ---- everything

    async def counter(self) -> Found[list[CounterEntry]]:
        """Every channel of every node. Raises UpstreamError also for a cluster without nodes."""
        nodes = await self._reachable_nodes()
        entries: list[CounterEntry] = []

        def count(node: Node, stats: Document) -> None:
            address = node.address
            for topic in documents(stats, "topics"):
                name = text(topic, "topic_name")
                entries.extend(
                    CounterEntry(address, name, text(each, "channel_name"), integer(each, "message_count"))
                    for each in documents(topic, "channels")
                )

        async with self._whole:
            answered, failures = await self._read_stats(nodes.value, count)
        if not answered:
            raise UpstreamError(NSQD, failures)
        return Found(entries, nodes.failures + failures)

    async def overview(self, *, clients: bool = False) -> Found[Overview]:
        """The totals of every topic, channel and node, for lists, search and history; on demand, all clients.

        A node that does not answer is in it, with its failure. Raises UpstreamError only if no node could be
        found.
        """
        nodes = await self._reachable_nodes()
        # An nsqd that is configured and does not say who it is goes by its address.
        silent = [failure for failure in nodes.failures if failure.kind == NSQD]
        unknown = [parse_info({}, failure.address) for failure in silent]
        builder = OverviewBuilder([*nodes.value, *unknown], with_clients=clients)
        async with self._whole:
            _, failures = await self._read_stats(nodes.value, builder.add, clients=clients)
        return Found(builder.finish(silent + failures), nodes.failures + failures)

    async def read_stats(self, read: Callable[[Node, Document], None]) -> Found[list[Node]]:
        """Have `read` called with every node and its `/stats`, without clients, as the answers come.

        Returns the nodes. Raises UpstreamError if none could be found.
        """
        nodes = await self._reachable_nodes()
        async with self._whole:
            _, failures = await self._read_stats(nodes.value, read)
        return Found(nodes.value, nodes.failures + failures)

    # ---- questions to daemons

    async def _lookupds(self, path: str) -> tuple[list[tuple[Daemon, Document]], list[Failure]]:
        async def ask(daemon: Daemon) -> Document:
            return as_document(await self.upstream.get_json(daemon, path))

        asked = [nsqlookupd(address) for address in self.nsqlookupds]
        answers, failures = await self.upstream.each(asked, ask)
        if not answers:
            raise UpstreamError(NSQLOOKUPD, failures)
        return answers, failures

    async def _nsqds(
        self, question: Callable[[Daemon], Awaitable[T]]
    ) -> tuple[list[tuple[Daemon, T]], list[Failure]]:
        """What the configured nsqds answer, but for standbys of replica groups, which serve no clients."""
        answers, failures = await self.upstream.each([nsqd(address) for address in self.nsqds], question)
        if not answers:
            raise UpstreamError(NSQD, failures)
        return answers, [failure for failure in failures if failure.code != "NOT_PRIMARY"]

    async def _info_of(self, daemon: Daemon) -> Document:
        return as_document(await self.upstream.get_json(daemon, "/info"))

    async def _stats_of(
        self, daemon: Daemon, *, topic: str = "", channel: str = "", clients: bool = False
    ) -> Document:
        return as_document(await self.upstream.get_json(daemon, _stats_path(topic, channel, clients)))

    async def _read_stats(
        self,
        nodes: Sequence[Node],
        read: Callable[[Node, Document], None],
        *,
        clients: bool = False,
    ) -> tuple[int, list[Failure]]:
        """Have `read` called with the `/stats` of every node as they come: how many came, and the failures.

        So the answers of a large cluster are not all in memory at once, and the loop turns between them.
        """
        by_address = {node.dial_address: node for node in nodes}

        path = _stats_path("", "", clients)

        async def ask(daemon: Daemon) -> None:
            body = await self.upstream.ask(daemon, "GET", path)
            # One answer at a time, with a turn of the loop in between: a page that needs three nodes must not
            # wait until a hundred are read.
            async with self._reading:
                await asyncio.sleep(0)
                read(by_address[daemon.address], as_document(parse_answer(path, body)))

        answers, failures = await self.upstream.each(map(nsqd, by_address), ask)
        return len(answers), failures


# A page that is looked at asks the same questions every few seconds.
@lru_cache(PATHS_KEPT)
def _lookup_path(topic: str) -> str:
    return with_query("/lookup", {"topic": topic})


@lru_cache(PATHS_KEPT)
def _stats_path(topic: str, channel: str, clients: bool) -> str:
    query = {"format": "json", "include_mem": "false"}
    if topic:
        query["topic"] = topic
    if channel:
        query["channel"] = channel
    if not clients:
        query["include_clients"] = "false"
    return with_query("/stats", query)
