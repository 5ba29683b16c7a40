"""One `nsq` source of a running query: which logs it reads, and how far behind their ends it is.

The source itself lives in a process of Spark, which this process cannot ask. So the options are read from the
query's plan in the JVM, and the nsqds are asked from here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

from nsquark.errors import NsquarkError

from ..errors import OptionError
from ..http import fetch_json
from ..options import STREAM_NAMES
from ..parallel import try_each
from ..source.directory import Directory, Node
from ..source.logs import LogKey, LogRange, reading_through, try_log_ranges
from ..source.offsets import LogPosition, Offset, parse_offset
from ..source.options import StreamOptions, parse_stream_options
from ..table_options import complete_options, options_of_table
from .document import pack_report

logger = logging.getLogger(__name__)

_MOST_LOGS = 256  # that one report asks and tells
_MOST_PEEKS = 32  # at messages, for their times
_TIMEOUT = 5.0  # a report must not wait for an nsqd as long as a query would


class Lag(NamedTuple):
    """None where it is not known."""

    messages: int | None
    seconds: float | None


class QuerySource:
    def __init__(self, options: StreamOptions) -> None:
        addresses = options.addresses
        access = replace(addresses.access, timeout=min(addresses.access.timeout, _TIMEOUT))
        self.options = options
        self._access = access
        self._directory = Directory(replace(addresses, access=access), options.subscription, options.channel)
        self._pairs: list[tuple[str, Node]] = []

    def find_logs(self) -> list[LogRange]:
        """The logs whose nsqds answer. Raises Unreachable."""
        if self._directory.due or not self._pairs:
            found = self._directory.find()
            self._pairs = [(topic, node) for topic, nodes in found.items() for node in nodes][:_MOST_LOGS]
        answers = try_log_ranges(self._directory, self._pairs)
        return [answer for answer in answers if isinstance(answer, LogRange)]

    def lags(self, logs: Iterable[LogRange], offset: Offset) -> dict[LogKey, Lag]:
        """How far the end of a batch is behind the end of each log, for the logs that it has a position in.

        The age of the oldest message is asked for where most messages wait.
        """
        places = {log: offset[log.key] for log in logs if log.key in offset}
        counts = {
            log: max(0, log.next - place.position)
            for log, place in places.items()
            if place.epoch == log.epoch
        }
        behind = sorted((log for log in counts if counts[log]), key=lambda log: counts[log], reverse=True)
        peeks = behind[:_MOST_PEEKS]
        ages = dict(zip(peeks, try_each(self._age, [(log, places[log]) for log in peeks]), strict=True))
        lags = {}
        for log, count in counts.items():
            age = ages.get(log) if count else 0.0
            lags[log.key] = Lag(count, round(age, 3) if isinstance(age, float) else None)
        return lags

    def _age(self, unread: tuple[LogRange, LogPosition]) -> float:
        """Seconds since the first unread message of a log was published."""
        log, place = unread
        query = {"topic": log.topic, "from": max(place.position, log.first), "limit": 1, "max_bytes": 1}
        query |= reading_through(self.options.channel)
        document = fetch_json(log.node.url, self._access, "/topic/peek", {**query, "epoch": log.epoch})
        return max(0.0, time.time() - int(document["messages"][0]["timestamp"]) / 1e9)

    def tell(
        self, logs: Sequence[LogRange], report: Mapping[str, Any], by_log: Mapping[LogKey, Mapping[str, Any]]
    ) -> None:
        """Send a report to every nsqd, for each topic that it has, with the fields that are about that log.

        What fails is logged.
        """

        def post(log: LogRange) -> None:
            query = {"topic": log.topic, "channel": self.options.channel}
            body = pack_report({**report, **by_log.get(log.key, {})})
            fetch_json(log.node.url, self._access, "/channel/report", query, "POST", body)

        for log, result in zip(logs, try_each(post, logs), strict=True):
            if isinstance(result, Exception):
                logger.debug(
                    "nsqd %s, topic %s: no progress is reported: %s", log.node.name, log.topic, result
                )


class SourceBatch(NamedTuple):
    """The last batch of a source lies between these offsets, which are empty if they are not known."""

    source: QuerySource
    start: Offset = {}  # noqa: RUF012 - nothing changes it
    end: Offset = {}  # noqa: RUF012
    rows: int | None = None


def assign_offsets(
    sources: Sequence[QuerySource], progress: Sequence[Mapping[str, Any]]
) -> list[SourceBatch]:
    """Which offsets of a progress report belong to which source.

    Both are in the order of the query's plan. Sources that are not `nsq`'s have offsets of another form.
    """
    offsets = [
        (_parse(each.get("startOffset")), end, each.get("numInputRows"))
        for each in progress
        if (end := _parse(each.get("endOffset")))
    ]
    assigned = []
    for source in sources:
        subscription = source.options.subscription
        fitting = (each for each in offsets if all(subscription.matches(topic) for topic, _ in each[1]))
        found = next(fitting, None)
        if found:
            offsets.remove(found)
        assigned.append(SourceBatch(source, *(found or ())))
    return assigned


def _parse(offset: object) -> Offset:
    """Spark gives an offset as JSON text, or as the parsed document."""
    try:
        document = json.loads(offset) if isinstance(offset, str) else offset
        return parse_offset(document) if isinstance(document, dict) else {}
    except (ValueError, OptionError):
        return {}


def find_sources(execution: Any) -> list[QuerySource]:
    """The `nsq` sources of a query, by its execution in the JVM. Raises errors of Py4J."""
    found: dict[str, QuerySource] = {}
    leaves = execution.analyzedPlan().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() != "StreamingRelationV2" or leaf.sourceName() != "nsq":
            continue
        columns = StructType.fromJson(json.loads(leaf.schema().json()))
        given = dict(leaf.extraOptions().asCaseSensitiveMap())
        options = complete_options(given, options_of_table(columns), STREAM_NAMES)
        key = json.dumps(options, sort_keys=True)
        if key not in found:  # a source that is joined with itself has several leaves
            try:
                found[key] = QuerySource(parse_stream_options(options))
            except NsquarkError as error:  # then the query fails with it, too
                logger.debug("%s", error)
    return list(found.values())
