"""The streaming reader that Spark sees. What is behind it is decided when it is first asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .admission import default_limit
from .errors import in_one_line
from .fetching import read_span
from .log_stream import LogStream
from .nodes import Directory
from .options import StreamOptions
from .partitions import LogPartition

logger = logging.getLogger(__name__)


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Shipped to executors for `read`; everything else happens in the query's own process."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._stream: LogStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}

    @property
    def _source(self) -> LogStream:
        if self._stream is None:
            options = self._options
            self._stream = LogStream(options, Directory(options.addresses, options.subscription))
        return self._stream

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        return self._source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._options)

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self._source.prepare_available_now()

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._source.latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._source.report_latest()

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [*self._source.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):  # what Spark makes of no partitions at all
            return iter(())
        return read_span(partition, self._schema, self._options.fetching)

    @in_one_line
    def commit(self, end: dict[str, Any]) -> None:
        self._source.commit(end)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()
