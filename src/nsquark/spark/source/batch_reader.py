"""The batch reader: ranges of logs, by position or time, planned once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from ..errors import DataLost, NoSuchTopic, OptionError, each_in_one_line, in_one_line
from ..options import EARLIEST, BatchOptions, Bound
from .directory import Directory, Log, NoLog, ask_log
from .offsets import Span
from .partitions import LogPartition, cut
from .span_reader import read_span

_SKEW = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Narrowing:
    """What the filters of a query leave of the logs. Spark filters again, so it may leave too much."""

    def __init__(self) -> None:
        self.low = 0
        self.high: int | None = None
        self.since: datetime | None = None
        self.until: datetime | None = None
        self.among: dict[str, set[str]] = {}

    def add(self, condition: Filter) -> None:
        match condition:
            case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
                self._at_least(name, value)
                self._at_most(name, value)
                self._one_of(name, (value,))
            case In(attribute=(name,), value=values):
                self._one_of(name, values)
            case GreaterThan(attribute=(name,), value=value):
                self._at_least(name, value, 1)
            case GreaterThanOrEqual(attribute=(name,), value=value):
                self._at_least(name, value)
            case LessThan(attribute=(name,), value=value):
                self._at_most(name, value, 1)
            case LessThanOrEqual(attribute=(name,), value=value):
                self._at_most(name, value)

    def _at_least(self, name: str, value: Any, more: int = 0) -> None:
        if name == "offset" and isinstance(value, int):
            self.low = max(self.low, value + more)
        elif name == "timestamp" and isinstance(value, datetime):
            self.since = max(self.since or value, value)

    def _at_most(self, name: str, value: Any, less: int = 0) -> None:
        if name == "offset" and isinstance(value, int):
            end = value + 1 - less
            self.high = end if self.high is None else min(self.high, end)
        elif name == "timestamp" and isinstance(value, datetime):
            self.until = min(self.until or value, value)

    def _one_of(self, name: str, values: tuple[Any, ...]) -> None:
        if name in ("topic", "nsqd"):
            wanted = set(values)
            self.among[name] = self.among.get(name, wanted) & wanted

    def leaves(self, log: Log) -> bool:
        names = {"topic": log.topic, "nsqd": log.node.name}
        return all(names[name] in wanted for name, wanted in self.among.items())


class PushFilters:
    """`pushFilters` of a reader, for Spark to call if spark.sql.python.filterPushdown.enabled is set.

    Where it is not set, Spark refuses a reader whose class has the method. It finds that out by looking at
    `__func__`, so a reader that has this in place of a method can be used either way.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, narrowing: Narrowing) -> None:
        self._narrowing = narrowing

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        for each in filters:
            self._narrowing.add(each)
        return filters  # times are found by the millisecond and with a margin, so Spark looks again


class NsqBatchReader(DataSourceReader):
    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowing = Narrowing()
        self.pushFilters = PushFilters(self._narrowing)  # type: ignore[method-assign]

    @in_one_line
    def partitions(self) -> list[InputPartition]:
        options = self._options
        directory = Directory(options.addresses, options.subscription)
        try:
            logs = [log for log in directory.logs() if self._narrowing.leaves(log)]
        except NoLog as error:
            raise OptionError(
                "subscribe",
                f"nsqd {error.node.name} has no log to read (only nsquark's has); "
                "a streaming query can consume from it",
            ) from None
        _check_names("startingOffsets", options.starting, logs)
        _check_names("endingOffsets", options.ending, logs)
        where = {log.key: log.node.url for log in logs}
        spans = []
        for span in directory.every(self._span, logs):
            if isinstance(span, Exception):
                raise span
            if span.rows > 0:
                spans.append(span)
        pieces = cut(spans, options.min_partitions, options.max_records)
        return [LogPartition(piece, where[piece.topic, piece.id]) for piece in pieces]

    def _span(self, log: Log) -> Span:
        options, narrowing = self._options, self._narrowing
        start = self._position(log, options.starting)
        end = self._position(log, options.ending)
        if start < log.first:
            lost = DataLost(
                f"option 'startingOffsets': topic {log.topic!r} at nsqd {log.node.name} "
                f"begins at {log.first}, not at {start}; "
                "with option 'failOnDataLoss' = false the query reads what is there"
            )
            if options.fetching.fail_on_data_loss:
                raise lost
        if end > log.next:
            raise OptionError(
                "endingOffsets",
                f"topic {log.topic!r} at nsqd {log.node.name} ends at {log.next}, before {end}",
            )
        start = max(start, log.first, narrowing.low)
        end = min(end, log.next, end if narrowing.high is None else narrowing.high)
        # A clock may have been set back: look a little further than a filter says.
        if narrowing.since is not None:
            start = max(start, self._at_time(log, _ms(narrowing.since - _SKEW)))
        if narrowing.until is not None:
            end = min(end, self._at_time(log, _ms(narrowing.until + _SKEW)))
        return Span(log.topic, log.id, log.node.name, log.epoch, start, max(start, end))

    def _position(self, log: Log, bound: Bound) -> int:
        if bound.time_ms is not None:
            return self._at_time(log, bound.time_ms)
        given = (bound.positions or {}).get(log.topic, {})
        position = given.get(log.id, given.get(log.node.name))
        if position is None:
            position = -2 if bound.word == EARLIEST else -1
        return log.first if position == -2 else log.next if position == -1 else position

    def _at_time(self, log: Log, time_ms: int) -> int:
        access = self._options.addresses.access
        position = ask_log(
            log.node, access, log.topic, epoch=log.epoch, timestamp_ms=max(0, time_ms)
        ).position
        assert position is not None
        return min(max(position, log.first), log.next)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # what Spark makes of no partitions at all
            return iter(())
        return each_in_one_line(read_span(partition, self._schema, self._options.fetching))


def _ms(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def _check_names(option: str, bound: Bound, logs: list[Log]) -> None:
    """Whatever positions are given for must be there: a misspelt one would silently mean all of it."""
    for topic, nsqds in (bound.positions or {}).items():
        known = {name for log in logs if log.topic == topic for name in (log.id, log.node.name)}
        if not known:
            raise NoSuchTopic(f"option '{option}': no topic {topic!r} among those that are read")
        for nsqd in nsqds:
            if nsqd not in known:
                raise OptionError(option, f"topic {topic!r} is not at nsqd {nsqd!r}")
