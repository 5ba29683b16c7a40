"""The questions that a cluster has for its daemons: which of them is asked, and what an answer must be.

An answer that is no answer to the question is a failure of its daemon (`Upstream.each`). Answers about the
whole cluster are read one at a time, and few such questions are asked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from ..upstream import Daemon, Failure, Upstream, UpstreamError, nsqd, nsqlookupd
from ..upstream.client import NSQD, NSQLOOKUPD, parse_answer, with_query
from ..upstream.failures import NOT_PRIMARY
from .document import Document, as_document
from .nodes import Node

T = TypeVar("T")

PATHS_KEPT = 4096
WHOLE_AT_ONCE = 4  # questions that read the statistics of the whole cluster, each of which may be large


class Configured(Protocol):
    """The daemons that the cluster is configured with, `host:port` each; they may change at any time."""

    upstream: Upstream
    nsqlookupds: list[str]
    nsqds: list[str]


class Questions:
    def __init__(self, known: Configured) -> None:
        self._known = known
        self._upstream = known.upstream
        self._whole = asyncio.Semaphore(WHOLE_AT_ONCE)
        self._reading = asyncio.Lock()

    async def lookupds(self, path: str) -> tuple[list[tuple[Daemon, Document]], list[Failure]]:
        async def ask(daemon: Daemon) -> Document:
            return as_document(await self._upstream.get_json(daemon, path))

        asked = [nsqlookupd(address) for address in self._known.nsqlookupds]
        answers, failures = await self._upstream.each(asked, ask)
        if not answers:
            raise UpstreamError(NSQLOOKUPD, failures)
        return answers, failures

    async def nsqds(
        self, question: Callable[[Daemon], Awaitable[T]]
    ) -> tuple[list[tuple[Daemon, T]], list[Failure]]:
        """What the configured nsqds answer, but for standbys of replica groups, which serve no clients."""
        answers, failures = await self._upstream.each(
            [nsqd(address) for address in self._known.nsqds], question
        )
        if not answers:
            raise UpstreamError(NSQD, failures)
        return answers, [failure for failure in failures if failure.code != NOT_PRIMARY]

    async def info_of(self, daemon: Daemon) -> Document:
        return as_document(await self._upstream.get_json(daemon, "/info"))

    async def stats_of(
        self, daemon: Daemon, *, topic: str = "", channel: str = "", clients: bool = False
    ) -> Document:
        return as_document(await self._upstream.get_json(daemon, stats_path(topic, channel, clients)))

    async def read_stats(
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

        path = stats_path("", "", clients)

        async def ask(daemon: Daemon) -> None:
            body = await self._upstream.ask(daemon, "GET", path)
            # One answer at a time, with a turn of the loop in between: a page that needs three nodes must not
            # wait until a hundred are read.
            async with self._reading:
                await asyncio.sleep(0)
                read(by_address[daemon.address], as_document(parse_answer(path, body)))

        async with self._whole:
            answers, failures = await self._upstream.each(map(nsqd, by_address), ask)
        return len(answers), failures


# A page that is looked at asks the same questions every few seconds.
@lru_cache(PATHS_KEPT)
def lookup_path(topic: str) -> str:
    return with_query("/lookup", {"topic": topic})


@lru_cache(PATHS_KEPT)
def stats_path(topic: str, channel: str, clients: bool) -> str:
    query = {"format": "json", "include_mem": "false"}
    if topic:
        query["topic"] = topic
    if channel:
        query["channel"] = channel
    if not clients:
        query["include_clients"] = "false"
    return with_query("/stats", query)
