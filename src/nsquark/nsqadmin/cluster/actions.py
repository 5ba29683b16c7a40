"""What changes the cluster: every node is told, all at once, and each has a result.

A node that fails does not stop the others. Only finding out which nodes to tell can fail as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..upstream import Daemon, Failure, UpstreamError, nsqd, nsqlookupd, warning
from ..upstream.client import NSQD
from .cluster import Cluster, NodeNotFound
from .nodes import Node

PAUSE, UNPAUSE, EMPTY = "pause", "unpause", "empty"
ACTIONS = (PAUSE, UNPAUSE, EMPTY)

Target = Daemon


@dataclass(slots=True)
class Outcome:
    """Which daemons did it, and which failed: also those that failed while looking for the nodes to tell."""

    done: list[Target] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def message(self) -> str:
        """As `/api` says it: empty, or a warning."""
        return warning(self.failures)


class Actions:
    """Names are not checked here: daemons judge them. Every method raises UpstreamError where it has to find
    nodes and cannot, and NodeNotFound for a `node` (a `Node.address`) that is none of the topic's.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # ---- creating

    async def create_topic(self, topic: str, on: Sequence[str] = ()) -> Outcome:
        """Register a topic with every nsqlookupd. It comes to life on the nsqds `on` (`Node.address` each),
        or else with its first publish.
        """
        outcome = Outcome()
        nodes = [(await self._cluster.find_node(address)).value for address in on]
        await self._tell_lookupds(outcome, "/topic/create", topic=topic)
        await self._tell_nodes(outcome, nodes, "/topic/create", topic=topic)
        return outcome

    async def create_channel(self, topic: str, channel: str) -> Outcome:
        """Create a channel on every nsqd that has the topic, after registering it with every nsqlookupd."""
        outcome = Outcome()
        await self._tell_lookupds(outcome, "/channel/create", topic=topic, channel=channel)
        nodes = await self._producers(outcome, topic)
        if not nodes and not self._cluster.nsqlookupds:
            raise UpstreamError(NSQD, [])
        await self._tell_nodes(outcome, nodes, "/channel/create", topic=topic, channel=channel)
        return outcome

    # ---- pausing and emptying

    async def act_on_topic(self, topic: str, action: str, node: str = "") -> Outcome:
        """Do one of `ACTIONS` on every nsqd that has the topic, or on one."""
        outcome = Outcome()
        nodes = await self._producers(outcome, topic, node)
        await self._tell_nodes(outcome, nodes, f"/topic/{action}", topic=topic)
        return outcome

    async def act_on_channel(self, topic: str, channel: str, action: str, node: str = "") -> Outcome:
        outcome = Outcome()
        nodes = await self._producers(outcome, topic, node)
        await self._tell_nodes(outcome, nodes, f"/channel/{action}", topic=topic, channel=channel)
        return outcome

    # ---- deleting

    async def delete_topic(self, topic: str) -> Outcome:
        """Forget a topic everywhere, with its messages."""
        outcome = Outcome()
        # The nsqlookupds are told before the nsqds, so that no consumer finds the topic in between; by then
        # they cannot say any more which nsqds have it.
        nodes = await self._producers(outcome, topic)
        await self._tell_lookupds(outcome, "/topic/delete", topic=topic)
        await self._tell_nodes(outcome, nodes, "/topic/delete", topic=topic)
        return outcome

    async def delete_channel(self, topic: str, channel: str, node: str = "") -> Outcome:
        """Forget a channel everywhere, or on one nsqd alone."""
        outcome = Outcome()
        nodes = await self._producers(outcome, topic, node)
        if not node:
            await self._tell_lookupds(outcome, "/channel/delete", topic=topic, channel=channel)
        await self._tell_nodes(outcome, nodes, "/channel/delete", topic=topic, channel=channel)
        return outcome

    async def tombstone(self, topic: str, node: str) -> Outcome:
        """Take a topic off one nsqd, and hide that nsqd from lookups of the topic for a while.

        Raises UpstreamError if the nsqd does not answer, when the nsqlookupds have hidden it already.
        """
        outcome = Outcome()
        found = await self._cluster.find_node(node)
        outcome.failures += found.failures
        await self._tell_lookupds(outcome, "/topic/tombstone", topic=topic, node=node)
        before = len(outcome.failures)
        await self._tell_nodes(outcome, [found.value], "/topic/delete", topic=topic)
        failed = outcome.failures[before:]
        if failed and not failed[0].status:
            raise UpstreamError(NSQD, failed)
        return outcome

    # ---- telling

    async def _producers(self, outcome: Outcome, topic: str, node: str = "") -> list[Node]:
        found = await self._cluster.producers(topic)
        outcome.failures += found.failures
        if not node:
            return found.value
        nodes = [each for each in found.value if each.address == node]
        if not nodes:
            raise NodeNotFound(f"no nsqd with the topic {topic!r} has the address {node!r}")
        return nodes

    async def _tell_lookupds(self, outcome: Outcome, path: str, **query: str) -> None:
        await self._tell(outcome, map(nsqlookupd, self._cluster.nsqlookupds), path, query)

    async def _tell_nodes(self, outcome: Outcome, nodes: Iterable[Node], path: str, **query: str) -> None:
        await self._tell(outcome, (nsqd(node.dial_address) for node in nodes), path, query)

    async def _tell(
        self, outcome: Outcome, targets: Iterable[Target], path: str, query: Mapping[str, str]
    ) -> None:
        upstream = self._cluster.upstream
        answers, failures = await upstream.each(
            targets, lambda target: upstream.ask(target, "POST", path, query)
        )
        outcome.done += [target for target, _ in answers]
        outcome.failures += failures
