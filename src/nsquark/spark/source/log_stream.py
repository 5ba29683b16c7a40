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
- Spark's log does not hold the initial offset. So the first offset after it says where its rows begin.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from ..errors import DataLost, RequestRefused, Unreachable
from .admission import MinimumRows, admit
from .bounds import EARLIEST, EARLIEST_POSITION, LATEST, LATEST_POSITION, Bound
from .directory import Directory
from .following import ChannelFollower, readable_end
from .logs import LogRange, check_positions, find_logs
from .offsets import LogPosition, Offset, Span, end_of, pack_offset, parse_offset, spans_between
from .options import StreamOptions
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
        self._follower = ChannelFollower(options.channel)
        self._minimum = MinimumRows(options)
        self._initial: Offset | None = None  # not in Spark's log
        self._latest: Offset | None = None  # the ends of all logs, for Spark's progress report
        self._target: Offset | None = None  # where Trigger.AvailableNow ends

    # ---- what Spark asks for

    def initial(self) -> dict[str, Any]:
        logs = find_logs(self._directory)
        check_positions(self._options.starting, logs)
        self._initial = {log.key: self._begin(log, self._options.starting) for log in logs}
        return pack_offset(self._initial)

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
            if place is not None and place.epoch == log.epoch:
                place = offset[key] = self._follower.follow(log, place)
            if place is not None and self._continues(log, place):
                counts[key] = max(0, min(self._end(log), readable_end(log, place)) - place.position)
            # Trigger.AvailableNow must come to an end, so it takes no log that turns up after its start.
            elif self._target is None or key in self._target:
                try:
                    place = self._begin(log, Bound(EARLIEST))
                    offset[key] = place._replace(begin=place.position)
                except (Unreachable, RequestRefused) as error:
                    logger.warning("%s; it is tried again", error)
        if self._target is None and offset == since and self._minimum.must_wait(sum(counts.values())):
            return start
        for key, count in admit(counts, logs, limit).items():
            if count:
                offset[key] = self._advance(offset[key], count, logs[key], since == self._initial)
        return pack_offset(offset)

    def report_latest(self) -> dict[str, Any] | None:
        return None if self._latest is None else pack_offset(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        since, until = parse_offset(start), parse_offset(end)
        for key, place in until.items():
            if place.begin is None and (key not in since or since[key].epoch != place.epoch):
                # The first batch of a checkpoint that was written before `begin` was. The cursor tells it.
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

    @staticmethod
    def _advance(place: LogPosition, count: int, log: LogRange, is_first: bool) -> LogPosition:
        """The position behind the next `count` messages of a log."""
        jumped = place.begin == place.position  # the query follows its channel with this batch
        return place._replace(
            nsqd=log.node.name,
            position=place.position + count,
            begin=place.position if jumped or is_first else None,
        )

    def _begin(self, log: LogRange, bound: Bound) -> LogPosition:
        """Where the query begins to read a log: the channel's cursor, which is created if it is new.

        Raises DataLost, ChannelInUse, Unreachable, RequestRefused.
        """
        position = bound.given_for(log.topic, log.nsqd_id, log.node.name)
        time_ms = bound.time_for(log.topic, log.nsqd_id, log.node.name)
        if time_ms is not None:
            begin: dict[str, object] = {"timestamp_ms": time_ms}
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
                raise DataLost(f"option '{bound.option}': {lost}") from None
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
