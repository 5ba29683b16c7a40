"""A streaming query over nsqds that have no log to read: messages are consumed, staged, and read from there.

An offset is how many messages were staged: `{"staged": 123}`. They are finished once they are on disk, so
that a restart replays the same rows for the same offsets; one that comes again is known by its id.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from ..errors import OptionError, Refused, Unreachable
from ..http import fetch
from ..options import StreamOptions
from ..source.admission import Least
from ..source.directory import Directory
from ..source.offsets import Span
from ..source.partitions import cut
from .consumer import Consuming
from .folder import Staging, chunks

logger = logging.getLogger(__name__)

_QUIET = 1.0  # seconds without news after which an nsqd that tells nothing is taken to have no more


@dataclass
class StagedPartition(InputPartition):
    paths: list[Path]
    start: int
    end: int


class StagedStream:
    def __init__(self, options: StreamOptions, directory: Directory) -> None:
        if not options.staging:
            raise OptionError(
                "stagingDirectory",
                "missing: without a log to read, messages must be kept somewhere until Spark has them",
            )
        if options.starting.time_ms is not None or options.starting.positions is not None:
            raise OptionError(
                "startingOffsets", "an nsqd has no log to read, so it begins where its channel is"
            )
        self._options = options
        self._directory = directory
        try:
            self._staging = Staging(Path(options.staging))
        except OSError as error:
            raise OptionError("stagingDirectory", f"{options.staging!r} cannot be used: {error}") from None
        self._least = Least(options)
        self._target: int | None = None
        self._consuming = Consuming(options, directory, self._staging)
        self._consuming.start()

    def initial(self) -> dict[str, Any]:
        return {"staged": self._staging.acknowledged}

    def prepare_available_now(self) -> None:
        self._target = self._wait_for_all()

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        since = parse_staged(start)
        if self._options.eager:
            self._acknowledge(since)
        if self._target is None:
            self._wait_for_news(since, self._options.poll_wait)
        end = self._staging.end if self._target is None else self._target
        rows = max(0, end - since)
        if self._target is None and self._least.waits(rows):
            return start
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            rows = self._within(since, rows, limit.max_bytes)
        return {"staged": since + rows}

    def report_latest(self) -> dict[str, Any] | None:
        return {"staged": self._staging.end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = parse_staged(start), parse_staged(end)
        found = [chunk for chunk in chunks(self._staging.folder) if chunk.end > since and chunk.first < until]
        span = Span("", "", "", "", since, until)
        spans = cut([span], self._options.min_partitions, self._options.max_records) if since < until else []
        return [
            StagedPartition(
                [chunk.path for chunk in found if chunk.end > piece.start and chunk.first < piece.end],
                piece.start,
                piece.end,
            )
            for piece in spans
        ]

    def commit(self, end: dict[str, Any]) -> None:
        if not self._options.eager:
            self._acknowledge(parse_staged(end))

    def stop(self) -> None:
        self._consuming.stop()
        self._staging.close()

    def _acknowledge(self, position: int) -> None:
        try:
            self._staging.acknowledge(position)
        except OSError as error:
            logger.warning("staging: %s", error)

    def _within(self, since: int, rows: int, max_bytes: int) -> int:
        """As many rows as fit, by the average of their files; at least one."""
        found = [chunk for chunk in chunks(self._staging.folder) if since < chunk.end]
        number = sum(chunk.end - chunk.first for chunk in found)
        size = sum(chunk.path.stat().st_size for chunk in found)
        return rows if size <= max_bytes or not rows else min(rows, max(1, number * max_bytes // size))

    def _wait_for_news(self, since: int, seconds: float) -> None:
        with self._consuming.news:
            self._consuming.news.wait_for(
                lambda: self._staging.end > since or self._consuming.failed, seconds
            )
        if self._consuming.failed is not None:
            raise self._consuming.failed

    def _wait_for_all(self) -> int:
        """Consume what is in the channels now; returns how many are staged then."""
        waiting = self._depth()
        # What was staged since then is counted twice, so it may be too far, but never too near.
        end, quiet = self._staging.end, time.monotonic() + _QUIET
        goal = None if waiting is None else end + waiting
        while True:
            self._wait_for_news(end, 0.1)
            if self._staging.end > end:
                end, quiet = self._staging.end, time.monotonic() + _QUIET
            if goal is None:
                if time.monotonic() > quiet:
                    return end
            elif end >= goal or self._depth() == 0:
                return self._staging.end

    def _depth(self) -> int | None:
        """What the nsqds have for us; None if one of them cannot say."""
        depth = 0
        access = self._options.addresses.access
        for topic, nodes in self._directory.find().items():
            for node in nodes:
                query = {"format": "json", "topic": topic, "include_clients": "false", "include_mem": "false"}
                try:
                    told = fetch(node.url, access, "/stats", query) if node.url else None
                except (Unreachable, Refused):
                    continue
                if told is None:
                    return None
                depth += _depth_of(told, self._options.channel)
        return depth


def _depth_of(stats: dict[str, Any], channel: str) -> int:
    depth = 0
    for topic in stats.get("topics") or ():
        depth += topic["depth"]
        for each in topic.get("channels") or ():
            if each["channel_name"] == channel:
                depth += each["depth"] + each["in_flight_count"]
    return int(depth)


def is_staged(document: dict[str, Any]) -> bool:
    return document.keys() == {"staged"} and isinstance(document["staged"], int)


def parse_staged(document: dict[str, Any]) -> int:
    """Raises OptionError if the checkpoint is not ours."""
    if not is_staged(document):
        raise OptionError(
            "checkpointLocation",
            "the checkpoint was written by reading logs (or by another source), not by consuming "
            f"(option 'mode'): {str(document)[:200]}",
        )
    return int(document["staged"])
