"""Pipelines: the streaming queries that report their progress to the nsqds they read.

A query sends the same report for every topic and to every node that it reads, and each nsqd keeps the last
ones. A pipeline is one query with the reports of the channel that has heard from it last. The texts of a
report are whatever the query told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..upstream import Daemon, Found, nsqd
from .cluster import Cluster
from .document import Document, as_document, documents, integer, number, text
from .nodes import Node

_LINK = re.compile(r"https?://[!-~]+")


@dataclass(slots=True, frozen=True)
class Report:
    """The progress of a query at one time; None is what it did not tell. docs/http-api.md has the fields."""

    query_id: str
    run_id: str
    query_name: str
    state: str  # running, ended or failed
    received_ms: int
    timestamp_ms: int | None
    batch: int | None
    rows: int | None
    input_rate: float | None
    processed_rate: float | None
    batch_ms: float | None
    lag_messages: int | None
    lag_seconds: float | None
    sink: str
    ui_url: str  # empty, or http or https
    error: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, frozen=True)
class ReadChannel:
    """A channel that a query reads, at one node."""

    node: str
    topic_name: str
    channel_name: str
    depth: int

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Pipeline:
    query_id: str
    reports: list[Report] = field(default_factory=list)  # oldest first, never empty
    last_error: Report | None = None
    reads: list[ReadChannel] = field(default_factory=list)

    @property
    def last(self) -> Report:
        return self.reports[-1]

    @property
    def name(self) -> str:
        """What people call it; its id if it has no name."""
        return self.last.query_name or self.query_id

    def add(self, channel: ReadChannel, reports: list[Report], error: Report | None) -> None:
        """Merge what one channel of one node knows of this query."""
        self.reads.append(channel)
        if not self.reports or _age(reports[-1]) > _age(self.last):
            self.reports = reports
        if error is not None and (self.last_error is None or error.received_ms > self.last_error.received_ms):
            self.last_error = error

    def to_json(self) -> dict[str, Any]:
        return {
            "query_id": self.query_id,
            "reports": [report.to_json() for report in self.reports],
            "last_error": None if self.last_error is None else self.last_error.to_json(),
            "reads": [channel.to_json() for channel in self.reads],
        }


class Pipelines:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def all(self, *, history: int = 1) -> Found[list[Pipeline]]:
        """Every pipeline of the cluster by name, with at most `history` reports of each channel.

        Raises UpstreamError if no node could be found. A node that fails is in the failures; Go's nsqd, which
        keeps no reports, is not.
        """
        nodes = await self._cluster.nodes()
        found = await self._ask(nodes.value, {"limit": history})
        return Found(found.value, nodes.failures + found.failures)

    async def of_channel(self, topic: str, channel: str, *, history: int = 60) -> Found[list[Pipeline]]:
        """The pipelines that have read a channel, mostly one. Raises UpstreamError."""
        nodes = await self._cluster.producers(topic)
        query = {"topic": topic, "channel": channel, "limit": history}
        found = await self._ask(nodes.value, query)
        return Found(found.value, nodes.failures + found.failures)

    async def _ask(self, nodes: Iterable[Node], query: dict[str, object]) -> Found[list[Pipeline]]:
        upstream = self._cluster.upstream
        by_address = {node.dial_address: node for node in nodes}

        async def ask(daemon: Daemon) -> Document:
            return as_document(await upstream.get_json(daemon, "/channel/reports", query))

        answers, failures = await upstream.each(map(nsqd, by_address), ask)
        pipelines = merge_reports((by_address[daemon.address].address, answer) for daemon, answer in answers)
        # 404 is an answer: of Go's nsqd, or of a node without the channel.
        return Found(pipelines, [failure for failure in failures if failure.status != 404])


def merge_reports(answers: Iterable[tuple[str, Document]]) -> list[Pipeline]:
    """The pipelines by name, from the answers to `/channel/reports` of the nodes of these addresses."""
    pipelines: dict[str, Pipeline] = {}
    for node, answer in answers:
        for each in documents(answer, "channels"):
            channel = ReadChannel(
                node, text(each, "topic_name"), text(each, "channel_name"), integer(each, "depth")
            )
            error = parse_report(as_document(each["last_error"])) if each.get("last_error") else None
            by_query: dict[str, list[Report]] = {}
            for report in map(parse_report, documents(each, "reports")):
                by_query.setdefault(report.query_id, []).append(report)
            for query_id, reports in by_query.items():
                pipeline = pipelines.setdefault(query_id, Pipeline(query_id))
                its_own = error if error is not None and error.query_id == query_id else None
                pipeline.add(channel, reports, its_own)
    return sorted(pipelines.values(), key=lambda each: (each.name, each.query_id))


def parse_report(document: Document) -> Report:
    link = text(document, "ui_url")
    return Report(
        query_id=text(document, "query_id"),
        run_id=text(document, "run_id"),
        query_name=text(document, "query_name"),
        state=text(document, "state"),
        received_ms=integer(document, "received_ms"),
        timestamp_ms=_known_integer(document, "timestamp_ms"),
        batch=_known_integer(document, "batch"),
        rows=_known_integer(document, "rows"),
        input_rate=_known_number(document, "input_rate"),
        processed_rate=_known_number(document, "processed_rate"),
        batch_ms=_known_number(document, "batch_ms"),
        lag_messages=_known_integer(document, "lag_messages"),
        lag_seconds=_known_number(document, "lag_seconds"),
        sink=text(document, "sink"),
        # Whatever a daemon says, a page must not link to a script.
        ui_url=link if _LINK.fullmatch(link) else "",
        error=text(document, "error"),
    )


def _age(report: Report) -> tuple[int, int]:
    """Of two batches that were reported within a millisecond, the later one counts."""
    return report.received_ms, -1 if report.batch is None else report.batch


def _known_integer(document: Document, key: str) -> int | None:
    return None if document.get(key) is None else integer(document, key)


def _known_number(document: Document, key: str) -> float | None:
    return None if document.get(key) is None else number(document, key)
