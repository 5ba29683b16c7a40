"""The offsets and partitions of a streaming query over nsquark's logs. Lives in the query's own process.

What Spark does, and what follows from it:

- Spark calls `commit` one batch late, and never for the last batch. Spark asks for the next offset only when
  the batch before it is in Spark's own log. So `latest(start)` acknowledges `start`, on the request that asks
  for the ends of the logs.
- Spark asks for the initial offset again when it replays the first batch. The initial offset is the cursor of
  the channel, which stays where it is until that batch is acknowledged.
- An exception from any of these methods fails the query. An nsqd that is away is therefore no error: its log
  stays at its position until the nsqd is back. Only a batch that must be replayed and needs the nsqd fails,
  after some tries.
- A log that turns up during a query enters the offset at its cursor first, without rows. The next batch reads
  it. So all rows of a batch lie between positions that are in Spark's log, and a replay has the same rows.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from ..errors import DataLost, RequestRefused, Unreachable
from .admission import MinimumRows, admit
from .directory import Directory
from .logs import LogRange, check_positions, find_logs
from .offsets import LogPosition, Offset, Span, end_of, pack_offset, parse_offset, spans_between
from .options import EARLIEST, EARLIEST_POSITION, LATEST, LATEST_POSITION, Bound, StreamOptions
from .partitions import LogPartition, cut_spans
from .query_channel import QueryChannel
from .span_reader import data_lost

logger = logging.getLogger(__name__)

_WORDS = {EARLIEST_POSITION: EARLIEST, LATEST_POSITION: LATEST}


class LogStream:
    def __init__(self, options: StreamOptions, directory: Directory) -> None:
        self._options = options
        self._directory = directory
        self._channel = QueryChannel(options, directory)
        self._minimum = MinimumRows(options)
        self._latest: Offset | None = None  # the ends of all logs, for Spark's progress report
        self._target: Offset | None = None  # where Trigger.AvailableNow ends

    # ---- what Spark asks for

    def initial(self) -> dict[str, Any]:
        logs = find_logs(self._directory)
        check_positions("startingOffsets", self._options.starting, logs)
        return pack_offset({log.key: self._begin(log, self._options.starting) for log in logs})

    def prepare_available_now(self) -> None:
        self._target = {}
        for log in find_logs(self._directory):
            self._channel.note(log)
            self._target[log.key] = end_of(log)

    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._channel.check_lease()
        since = parse_offset(start)
        logs = self._channel.ask_ends(since, self._options.poll_wait if self._target is None else 0.0)
        self._latest = {**since, **{key: end_of(log) for key, log in logs.items()}}
        offset, counts = dict(since), {}
        for key, log in logs.items():
            place = since.get(key)
            if place is not None and self._continues(log, place):
                counts[key] = max(0, self._end(log) - place.position)
            # Trigger.AvailableNow must come to an end, so it takes no log that turns up after its start.
            elif self._target is None or key in self._target:
                try:
                    offset[key] = self._begin(log, Bound(EARLIEST))
                except (Unreachable, RequestRefused) as error:
                    logger.warning("%s; it is tried again", error)
        if self._target is None and offset == since and self._minimum.must_wait(sum(counts.values())):
            return start
        for key, count in admit(counts, logs, limit).items():
            if count:
                offset[key] = end_of(logs[key])._replace(position=since[key].position + count)
        return pack_offset(offset)

    def report_latest(self) -> dict[str, Any] | None:
        return None if self._latest is None else pack_offset(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = parse_offset(start), parse_offset(end)
        for key, place in until.items():
            if key not in since or since[key].epoch != place.epoch:
                # Spark's log does not hold the initial offset of a query. The channel's cursor tells it.
                log = self._channel.find_cursor(key, place.nsqd)
                if log.epoch == place.epoch and log.cursor is not None:
                    since[key] = place._replace(position=min(log.cursor, place.position))
        options = self._options
        spans = cut_spans(spans_between(since, until), options.min_partitions, options.max_records)
        return [LogPartition(span, self._channel.url_of(span.key, span.nsqd)) for span in spans]

    def commit(self, end: dict[str, Any]) -> None:
        if not self._options.eager:
            self._channel.commit(parse_offset(end))

    def stop(self) -> None:
        self._channel.end_lease()

    # ---- single logs

    def _begin(self, log: LogRange, bound: Bound) -> LogPosition:
        """Where the query begins to read a log: the channel's cursor, which is created if it is new.

        Raises DataLost, ChannelInUse, Unreachable, RequestRefused.
        """
        position = bound.given_for(log.topic, log.nsqd_id, log.node.name)
        if bound.time_ms is not None:
            begin: dict[str, object] = {"timestamp_ms": bound.time_ms}
        else:
            begin = {"from": bound.word if position is None else _WORDS.get(position, position)}
        try:
            return self._channel.create(log, **begin)
        except RequestRefused as error:
            if error.message not in ("POSITION_GONE", "POSITION_NOT_REACHED") or position is None:
                raise
            lost = data_lost(
                Span(log.topic, log.nsqd_id, log.node.name, log.epoch, position, position), error.details
            )
            if self._options.fetch.fail_on_data_loss:
                raise DataLost(f"option 'startingOffsets': {lost}") from None
            logger.warning("%s", lost)
            return self._begin(log, Bound(EARLIEST))

    def _continues(self, log: LogRange, place: LogPosition) -> bool:
        """Whether the query can go on in the log at its position. Raises DataLost if it must not go on."""
        if log.epoch == place.epoch and log.first <= place.position <= log.next:
            return True
        lost = data_lost(
            Span(log.topic, log.nsqd_id, place.nsqd, place.epoch, place.position, place.position),
            {"epoch": log.epoch, "first": log.first, "next": log.next},
        )
        if self._options.fetch.fail_on_data_loss:
            raise lost
        logger.warning("%s", lost)
        return log.epoch == place.epoch and place.position < log.first

    def _end(self, log: LogRange) -> int:
        if self._target is None:
            return log.next
        target = self._target.get(log.key)
        return target.position if target is not None and target.epoch == log.epoch else 0
