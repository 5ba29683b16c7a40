"""The streaming reader that Spark sees. It reads nsquark's logs, or spools the messages of a stock nsqd.

The choice falls when Spark asks for an offset for the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from .errors import NoSuchTopic, OptionError, Unreachable, iterate_without_traceback, without_traceback
from .source import LogStream
from .source.admission import default_limit
from .source.directory import Directory
from .source.logs import NsqdWithoutLog, find_logs
from .source.options import StreamOptions
from .source.partitions import LogPartition
from .source.span_reader import read_span
from .spool import SpoolPartition, SpoolStream, is_spool_offset, read_spool

logger = logging.getLogger(__name__)


class MicroBatchStream(Protocol):
    """The source of one query, in the query's own process: LogStream or SpoolStream."""

    def initial(self) -> dict[str, Any]: ...
    def prepare_available_now(self) -> None: ...
    def latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def report_latest(self) -> dict[str, Any] | None: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark ships copies of the reader to executors for `read`. All other methods run in one process."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._stream: MicroBatchStream | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}

    def _opened(self, offset: dict[str, Any] | None = None) -> MicroBatchStream:
        """The stream, which the first call opens; `offset` is one of the query's, unless the query is new."""
        if self._stream is None:
            self._stream = self._open(offset)
        return self._stream

    def _open(self, offset: dict[str, Any] | None) -> MicroBatchStream:
        options = self._options
        has_spooled = offset is not None and is_spool_offset(offset)
        directory = Directory(options.addresses, options.subscription, options.channel)
        consume = options.mode == "consumer" or (options.mode == "auto" and has_spooled)
        stock_nsqd = "" if consume else self._find_nsqd_without_log(directory, offset is not None)
        if stock_nsqd and options.mode == "log":
            raise OptionError("mode", f"nsqd {stock_nsqd} has no log to read")
        if not stock_nsqd and not consume:
            return LogStream(options, directory)
        logger.warning(
            "%s: topics %s are consumed by channel %s and spooled in %s",
            f"nsqd {stock_nsqd} has no log to read" if stock_nsqd else "there is no log to read",
            options.subscription,
            options.channel,
            options.spool_folder,
        )
        return SpoolStream(options, directory)

    @staticmethod
    def _find_nsqd_without_log(directory: Directory, can_wait: bool) -> str:
        """The name of an nsqd that keeps no log; empty if all keep logs, or none can be asked now.

        Raises Unreachable or NoSuchTopic, unless the query can wait: it has read something before.
        """
        try:
            find_logs(directory)
        except NsqdWithoutLog as error:
            return error.node.name
        except (Unreachable, NoSuchTopic):
            if not can_wait:
                raise
        return ""

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        return self._opened().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self._options)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        self._opened().prepare_available_now()

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._opened(start).latest(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._opened().report_latest()

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._opened(end).partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        match partition:
            case LogPartition():
                return iterate_without_traceback(read_span(partition, self._schema, self._options.fetch))
            case SpoolPartition():
                return iterate_without_traceback(
                    read_spool(partition, self._schema, self._options.fetch.columns)
                )
            case _:  # Spark makes a plain InputPartition when there are no partitions
                return iter(())

    @without_traceback
    def commit(self, end: dict[str, Any]) -> None:
        self._opened(end).commit(end)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.stop()
