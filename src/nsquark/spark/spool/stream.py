"""The offsets and partitions of a streaming query over nsqds that keep no log.

The messages are consumed into the spool and read from there. An offset is how many messages the spool has got
so far: `{"staged": 123}`. A message is finished when it is on disk, so a restart reads the same rows for the
same offsets. A message that nsqd delivers again is recognized by its id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType

from ..errors import DataLost, OptionError, RequestRefused, Unreachable
from ..http import fetch_json
from ..source.admission import MinimumRows
from ..source.decode import Decoder
from ..source.directory import Directory
from ..source.options import StreamOptions
from ..source.partitions import count_pieces, cut_range
from .consumer import SpoolConsumer
from .folder import Spool, SpoolFile, list_files, read_file

logger = logging.getLogger(__name__)

# If an nsqd does not tell its depth, a channel without a new message for so many seconds counts as empty.
_QUIET_SECONDS = 1.0
_OFFSET_KEY = "staged"  # in every checkpoint that was ever written


@dataclass
class SpoolPartition(InputPartition):
    """The messages with the numbers [start, end), and the files that hold them."""

    files: list[SpoolFile]
    start: int
    end: int


class SpoolStream:
    def __init__(self, options: StreamOptions, directory: Directory) -> None:
        if not options.spool_folder:
            raise OptionError(
                "stagingDirectory",
                "missing: without a log to read, messages must be kept somewhere until Spark has them",
            )
        if not options.starting.is_word:
            raise OptionError(
                options.starting.option, "an nsqd has no log to read, so it begins where its channel is"
            )
        self._options = options
        self._directory = directory
        try:
            self._spool = Spool(Path(options.spool_folder))
        except OSError as error:
            raise OptionError(
                "stagingDirectory", f"{options.spool_folder!r} cannot be used: {error}"
            ) from None
        self._minimum = MinimumRows(options)
        self._target: int | None = None  # where Trigger.AvailableNow ends
        self._consumer = SpoolConsumer(options, directory, self._spool)
        self._consumer.start()

    def initial(self) -> dict[str, Any]:
        return _pack_offset(self._spool.acknowledged)

    def prepare_available_now(self) -> None:
        self._target = self._consume_all()

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        since = _parse_offset(start)
        if self._options.eager:
            self._acknowledge(since)
        if self._target is None:
            self._wait_for_messages(since, self._options.poll_wait)
        end = self._spool.end if self._target is None else self._target
        rows = max(0, end - since)
        if self._target is None and self._minimum.must_wait(rows):
            return start
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            rows = self._rows_within(since, rows, limit.max_bytes)
        return _pack_offset(since + rows)

    def report_latest(self) -> dict[str, Any] | None:
        return _pack_offset(self._spool.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = _parse_offset(start), _parse_offset(end)
        if since >= until:
            return []
        files = list_files(self._spool.folder)
        (count,) = count_pieces([until - since], self._options.min_partitions, self._options.max_records)
        return [
            SpoolPartition([file for file in files if file.end > low and file.first < high], low, high)
            for low, high in cut_range(since, until, count)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        if not self._options.eager:
            self._acknowledge(_parse_offset(end))

    def stop(self) -> None:
        self._consumer.stop()
        self._spool.close()

    def _acknowledge(self, number: int) -> None:
        try:
            self._spool.acknowledge(number)
        except OSError as error:
            logger.warning("spool: %s", error)

    def _rows_within(self, since: int, rows: int, max_bytes: int) -> int:
        """How many of the rows fit into so many bytes, by the average size of a message; at least one."""
        files = [file for file in list_files(self._spool.folder) if since < file.end]
        messages = sum(file.end - file.first for file in files)
        size = sum(file.path.stat().st_size for file in files)
        return rows if size <= max_bytes or not rows else min(rows, max(1, messages * max_bytes // size))

    def _wait_for_messages(self, since: int, seconds: float) -> None:
        """Wait until the spool has more than `since` messages. Raises the failure of the consumer."""
        consumer = self._consumer
        with consumer.changed:
            consumer.changed.wait_for(lambda: self._spool.end > since or consumer.failure, seconds)
        if consumer.failure is not None:
            raise consumer.failure

    def _consume_all(self) -> int:
        """Wait until the spool has all messages that are in the channels now; the end of the spool then."""
        waiting = self._depth()
        # Messages that come into the spool between these two lines count twice. So the goal may be too far,
        # but it is never too near.
        end, quiet_at = self._spool.end, time.monotonic() + _QUIET_SECONDS
        goal = None if waiting is None else end + waiting
        while True:
            self._wait_for_messages(end, 0.1)
            if self._spool.end > end:
                end, quiet_at = self._spool.end, time.monotonic() + _QUIET_SECONDS
            if goal is None:
                if time.monotonic() > quiet_at:
                    return end
            elif end >= goal or self._depth() == 0:
                return self._spool.end

    def _depth(self) -> int | None:
        """How many messages wait for the query at all nsqds; None if the HTTP port of one is not known."""
        depth = 0
        access = self._options.addresses.access
        for topic, nodes in self._directory.find().items():
            for node in nodes:
                if not node.url:
                    return None
                query = {"format": "json", "topic": topic, "include_clients": "false", "include_mem": "false"}
                try:
                    stats = fetch_json(node.url, access, "/stats", query)
                except (Unreachable, RequestRefused):
                    continue
                if stats is None:
                    return None
                depth += _depth_in(stats, self._options.channel)
        return depth


def _depth_in(stats: dict[str, Any], channel: str) -> int:
    depth = 0
    for topic in stats.get("topics") or ():
        depth += topic["depth"]
        for each in topic.get("channels") or ():
            if each["channel_name"] == channel:
                depth += each["depth"] + each["in_flight_count"]
    return int(depth)


def _pack_offset(number: int) -> dict[str, Any]:
    return {_OFFSET_KEY: number}


def is_spool_offset(document: dict[str, Any]) -> bool:
    return document.keys() == {_OFFSET_KEY} and isinstance(document[_OFFSET_KEY], int)


def _parse_offset(document: dict[str, Any]) -> int:
    """Raises OptionError if another kind of source wrote the checkpoint."""
    if not is_spool_offset(document):
        raise OptionError(
            "checkpointLocation",
            "the checkpoint was written by reading logs (or by another source), not by consuming "
            f"(option 'mode'): {str(document)[:200]}",
        )
    return int(document[_OFFSET_KEY])


def read_spool(
    partition: SpoolPartition, schema: StructType, columns: Collection[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Raises DataLost if a file is gone."""
    for file in partition.files:
        try:
            topic, nsqd, batch = read_file(file.path)
        except FileNotFoundError:
            raise DataLost(
                f"option 'stagingDirectory': offsets [{partition.start}, {partition.end}) are to be read, "
                f"but {file.path} is gone"
            ) from None
        low, high = max(partition.start, file.first), min(partition.end, file.end)
        yield Decoder(schema, topic, nsqd, columns).decode(batch, low, high - low)
