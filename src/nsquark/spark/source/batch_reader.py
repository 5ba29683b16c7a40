"""The batch reader: a table is a range of each log, by position or time, planned once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..errors import DataLost, OptionError, iterate_without_traceback, without_traceback
from ..parallel import call_each
from .bounds import EARLIEST, EARLIEST_POSITION, LATEST_POSITION, Bound
from .directory import Directory
from .filters import FilterBounds, PushFilters
from .logs import (
    LogRange,
    NsqdWithoutLog,
    ask_log_range,
    check_positions,
    check_topics,
    find_logs,
    warn_of_gone_beginning,
)
from .offsets import Span
from .options import BatchOptions
from .partitions import LogPartition, cut_spans
from .span_reader import count_span

# The clock of an nsqd may be set back. A filter on times therefore reads a little more on either side.
_CLOCK_MARGIN = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NsqBatchReader(DataSourceReader):
    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds = FilterBounds()
        # Spark 4.3 keeps what it has planned for a filter with the DataFrame that the filter was put on, and
        # uses it for other queries on the same DataFrame: these would miss rows. So a user must ask for it.
        if options.push_filters:
            self.pushFilters = PushFilters(self._bounds)  # type: ignore[method-assign]

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        options = self._options
        try:
            found = find_logs(Directory(options.addresses, options.subscription))
        except NsqdWithoutLog as error:
            raise OptionError(
                options.subscription.option,
                f"nsqd {error.node.name} has no log to read (only nsquark's has); "
                "a streaming query can consume from it",
            ) from None
        logs = [log for log in found if self._bounds.include(log)]
        for bound in (options.starting, options.ending):
            check_topics(bound, found)
            check_positions(bound, found)
        urls = {log.key: log.node.url for log in logs}
        spans = [span for span in call_each(self._span, logs) if span.rows > 0]
        pieces = cut_spans(spans, options.min_partitions, options.max_records)
        return [LogPartition(piece, urls[piece.key]) for piece in pieces]

    def _span(self, log: LogRange) -> Span:
        options, bounds = self._options, self._bounds
        start = self._position(log, options.starting)
        if self._begins_earliest(log):
            warn_of_gone_beginning(log)
        end = self._position(log, options.ending)
        if start < log.first and options.fetch.fail_on_data_loss:
            raise DataLost(
                f"option '{options.starting.option}': topic {log.topic!r} at nsqd {log.node.name} "
                f"begins at {log.first}, not at {start}; "
                "with option 'failOnDataLoss' = false the query reads what is there"
            )
        if end > log.next:
            raise OptionError(
                options.ending.option,
                f"topic {log.topic!r} at nsqd {log.node.name} ends at {log.next}, before {end}",
            )
        start = max(start, log.first, bounds.first)
        end = min(end, log.next, end if bounds.end is None else bounds.end)
        if bounds.since is not None:
            start = max(start, self._position_at(log, _milliseconds(bounds.since - _CLOCK_MARGIN)))
        if bounds.until is not None:
            end = min(end, self._position_at(log, _milliseconds(bounds.until + _CLOCK_MARGIN)))
        return Span(log.topic, log.nsqd_id, log.node.name, log.epoch, start, max(start, end))

    def _begins_earliest(self, log: LogRange) -> bool:
        bound, names = self._options.starting, (log.topic, log.nsqd_id, log.node.name)
        position = bound.given_for(*names)
        if position is None:
            return bound.time_for(*names) is None and bound.word == EARLIEST
        return position == EARLIEST_POSITION

    def _position(self, log: LogRange, bound: Bound) -> int:
        time_ms = bound.time_for(log.topic, log.nsqd_id, log.node.name)
        if time_ms is not None:
            return self._position_at(log, time_ms)
        position = bound.given_for(log.topic, log.nsqd_id, log.node.name)
        if position is None:
            position = EARLIEST_POSITION if bound.word == EARLIEST else LATEST_POSITION
        return {EARLIEST_POSITION: log.first, LATEST_POSITION: log.next}.get(position, position)

    def _position_at(self, log: LogRange, time_ms: int) -> int:
        access = self._options.addresses.access
        position = ask_log_range(
            log.node, access, log.topic, epoch=log.epoch, timestamp_ms=max(0, time_ms)
        ).position
        assert position is not None
        return min(max(position, log.first), log.next)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # Spark makes a plain one when there are no partitions
            return iter(())
        return iterate_without_traceback(count_span(partition, self._schema, self._options.fetch))


def _milliseconds(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
