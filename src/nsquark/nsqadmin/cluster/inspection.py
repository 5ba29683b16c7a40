"""What nsquark's nsqd offers beyond NSQ, of one node: peeks, seeks, dead letters, the log; and a publish.

Every method takes a `Node` (from `Cluster.producers` or `Cluster.find_node`) and returns the JSON of nsqd's
answer. It raises BadStatus with nsqd's own code, ConnectFailed or ConnectionLost; `explain` puts these into
words.
"""

from __future__ import annotations

from collections.abc import Mapping

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import BadStatus

from ..upstream import Failure, Upstream, nsqd
from ..upstream.client import NSQD, failure_of
from .document import Document, as_document
from .nodes import Node


class Inspection:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def peek_topic(
        self, node: Node, topic: str, *, start: int | None = None, limit: int = 10
    ) -> Document:
        """Messages of the topic's log from the position `start` on, or the newest."""
        query: dict[str, object] = {"topic": topic, "limit": limit}
        if start is not None:
            query["from"] = start
        return await self._get(node, "/topic/peek", query)

    async def peek_channel(
        self, node: Node, topic: str, channel: str, state: str, *, limit: int = 10
    ) -> Document:
        """Messages of a channel that are `ready`, `requeued`, `in_flight` or `deferred`."""
        query = {"topic": topic, "channel": channel, "state": state, "limit": limit}
        return await self._get(node, "/channel/peek", query)

    async def log_range(
        self, node: Node, topic: str, *, channel: str = "", timestamp_ms: int | None = None
    ) -> Document:
        """Where the log begins and ends, where a channel stands in it, and the position of a time."""
        query: dict[str, object] = {"topic": topic}
        if channel:
            query["channel"] = channel
        if timestamp_ms is not None:
            query["timestamp_ms"] = timestamp_ms
        return await self._get(node, "/log/range", query)

    async def seek(self, node: Node, topic: str, channel: str, to: str) -> Document:
        """Move a channel: `to` is `earliest`, `latest`, a position or an RFC 3339 time."""
        return await self._post(node, "/channel/seek", {"topic": topic, "channel": channel, "to": to})

    async def redeliver(
        self, node: Node, topic: str, channel: str, limit: int | None = None, letter: str = ""
    ) -> Document:
        """Send dead letters back to their channel: at most `limit`, or all; or the one of this id."""
        query: dict[str, object] = {"topic": topic, "channel": channel}
        if limit is not None:
            query["limit"] = limit
        if letter:
            query["id"] = letter
        return await self._post(node, "/channel/redeliver", query)

    async def set_max_attempts(self, node: Node, topic: str, channel: str, to: str) -> Document:
        """`to` is a number, or `default`."""
        return await self._post(node, "/channel/max_attempts", {"topic": topic, "channel": channel, "to": to})

    async def retention(self, node: Node, topic: str) -> Document:
        """What is kept of a topic, by its own setting or by the flags, and how large its log is."""
        return await self._get(node, "/topic/retention", {"topic": topic})

    async def retain(self, node: Node, topic: str, wanted: Mapping[str, str]) -> Document:
        """Keep more or less: `wanted` has `bytes`, `time` or both. Returns what `retention` does."""
        return await self._post(node, "/topic/retention", {"topic": topic, **wanted})

    async def publish(self, node: Node, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """Publish one message, at most once. Go's nsqd does this too."""
        query: dict[str, object] = {"topic": topic}
        if defer_ms:
            query["defer"] = defer_ms
        await self._upstream.ask(nsqd(node.dial_address), "POST", "/pub", query, body, once=True)

    async def _get(self, node: Node, path: str, query: dict[str, object]) -> Document:
        return as_document(await self._upstream.get_json(nsqd(node.dial_address), path, query))

    async def _post(self, node: Node, path: str, query: dict[str, object]) -> Document:
        return as_document(await self._upstream.post_json(nsqd(node.dial_address), path, query))


def explain(node: Node, error: NsquarkError) -> str:
    """Why nsqd did not do it. Go's nsqd does not know the routes, and says so in its own way."""
    if (
        isinstance(error, BadStatus)
        and error.status in (404, 405)
        and error.message
        in (
            "NOT_FOUND",
            "METHOD_NOT_ALLOWED",
        )
    ):
        return f"{node.address} runs NSQ's own nsqd, which does not offer this"
    return str(failure_of(nsqd(node.dial_address), error))


def failed_at(node: Node, error: NsquarkError) -> Failure:
    """What a list of results tells of a node that did not do it."""
    reason = explain(node, error)
    for address in (node.address, node.dial_address):
        reason = reason.removeprefix(address).removeprefix(":").lstrip()
    return Failure(NSQD, node.address, reason)
