"""The streaming reader that Spark sees. What is behind it is decided when it is first asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .errors import NoSuchTopic, OptionError, Unreachable, each_in_one_line, in_one_line
from .options import StreamOptions
from .source.admission import default_limit
from .source.directory import Directory, NoLog
from .source.log_stream import LogStream
from .source.partitions import LogPartition
from .source.span_reader import read_span
from .spool.folder import read_rows
from .spool.stream import StagedPartition, StagedStream, is_staged

logger = logging.getLogger(__name__)


class Stream(Protocol):
    """A query's source, in the query's own process."""

    def initial(self) -> dict[str, Any]: ...
    def prepare_available_now(self) -> None: ...
    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def report_latest(self) -> dict[str, Any] | None: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Shipped to executors for `read`; everything else happens in the query's own process."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._stream: Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}

    def _source(self, offset: dict[str, Any] | None = None) -> Stream:
        """`offset` is where the query is, if it is not a new one."""
        if self._stream is None:
            self._stream = self._open(offset is not None and is_staged(offset))
        return self._stream

    def _open(self, was_staged: bool) -> Stream:
        options = self._options
        directory = Directory(options.addresses, options.subscription)
        consume = options.mode == "consumer" or (options.mode == "auto" and was_staged)
        lacking = "" if consume else self._without_log(directory)
        if lacking and options.mode == "log":
            raise OptionError("mode", f"nsqd {lacking} has no log to read")
        if not lacking and not consume:
            return LogStream(options, directory)
        why = f"nsqd {lacking} has no log to read" if lacking else "there is no log to read"
        logger.warning(
            "%s: topics %s are consumed by channel %s and staged in %s",
            why,
            options.subscription,
            options.channel,
            options.staging,
        )
        return StagedStream(options, directory)

    @staticmethod
    def _without_log(directory: Directory) -> str:
        """The name of an nsqd that has no log to read, if there is one."""
        try:
            directory.logs()
        except NoLog as error:
            return error.node.name
        except (Unreachable, NoSuchTopic):
            pass  # a query that begins will say so; one that goes on can wait for it
        return ""

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        return self._source().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._options)

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self._source().prepare_available_now()

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._source(start).latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._source().report_latest()

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._source(end).partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        match partition:
            case LogPartition():
                return each_in_one_line(read_span(partition, self._schema, self._options.fetching))
            case StagedPartition():
                rows = read_rows(partition.paths, partition.start, partition.end, self._schema)
                return each_in_one_line(rows)
            case _:  # what Spark makes of no partitions at all
                return iter(())

    @in_one_line
    def commit(self, end: dict[str, Any]) -> None:
        self._source(end).commit(end)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()
