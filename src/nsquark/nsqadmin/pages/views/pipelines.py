"""The page of streaming queries: what they last reported to the nsqds that they read.

A query sends the same report to every nsqd and for every topic that it reads. One query is known by
its id, and its latest report counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import BadStatus

from ...cluster import Node
from ...cluster.document import Document, as_document, documents, integer, number, text
from ...upstream import Failure, nsqd
from ..site import Site
from .lists import spark_points

SILENT_AFTER = 180.0  # seconds without a report of a query that runs


@dataclass(slots=True)
class Pipeline:
    query_id: str
    latest: Document
    channels: set[tuple[str, str]] = field(default_factory=set)
    error: Document = field(default_factory=dict)  # the last report that told one
    reports: dict[int, Document] = field(default_factory=dict)  # by batch and time

    @property
    def name(self) -> str:
        return text(self.latest, "query_name") or self.query_id

    @property
    def state(self) -> str:
        return text(self.latest, "state")

    @property
    def silent_for(self) -> float:
        """Seconds since the last report of a query that should report; 0 while it does."""
        silence = time.time() - integer(self.latest, "received_ms") / 1000
        return silence if self.state == "running" and silence > SILENT_AFTER else 0.0

    def told(self, name: str) -> int | float | None:
        """A number of the latest report; None if it does not tell it."""
        return number(self.latest, name) if self.latest.get(name) is not None else None

    def word(self, name: str) -> str:
        return text(self.latest, name)

    def spark(self, name: str) -> str:
        ordered = sorted(self.reports.values(), key=lambda report: integer(report, "received_ms"))
        return spark_points([float(number(report, name)) for report in ordered])

    @property
    def error_text(self) -> str:
        return text(self.error, "error")

    @property
    def error_time_ns(self) -> int:
        return integer(self.error, "received_ms") * 1_000_000


def merge(answers: Iterable[Any]) -> list[Pipeline]:
    """The queries of nsqds' answers to `/channel/reports`: those in trouble first, then by name."""
    pipelines: dict[str, Pipeline] = {}
    for answer in answers:
        for channel in documents(as_document(answer), "channels"):
            names = text(channel, "topic_name"), text(channel, "channel_name")
            for report in documents(channel, "reports"):
                _add(pipelines, names, report)
            error = as_document(channel.get("last_error"))
            found = pipelines.get(text(error, "query_id"))
            if found is not None and integer(error, "received_ms") > integer(found.error, "received_ms"):
                found.error = error
    return sorted(
        pipelines.values(), key=lambda each: (each.state != "failed", not each.silent_for, each.name)
    )


def _add(pipelines: dict[str, Pipeline], names: tuple[str, str], report: Document) -> None:
    query_id = text(report, "query_id")
    pipeline = pipelines.setdefault(query_id, Pipeline(query_id, report))
    pipeline.channels.add(names)
    # Every nsqd received the same report at a time of its own.
    pipeline.reports[integer(report, "timestamp_ms") or integer(report, "received_ms")] = report
    if integer(report, "received_ms") >= integer(pipeline.latest, "received_ms"):
        pipeline.latest = report


async def show(site: Site, request: Request) -> Response:
    found = await site.cluster.nodes()
    failures = list(found.failures)

    async def ask(node: Node) -> Any:
        try:
            return await site.cluster.upstream.get_json(nsqd(node.dial_address), "/channel/reports")
        except BadStatus as error:
            if error.status == 404:
                return {}  # NSQ's own nsqd keeps no reports
            failures.append(Failure("nsqd", node.address, str(error)))
        except NsquarkError as error:
            failures.append(Failure("nsqd", node.address, str(error)))
        return {}

    answers = await asyncio.gather(*map(ask, found.value))
    values = {"section": "Pipelines", "failures": failures, "pipelines": merge(answers)}
    return site.render(request, "pipelines.html", values)
