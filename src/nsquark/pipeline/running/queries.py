"""Running a streaming query until it ends by itself, by a signal, or by a failure."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

from nsquark.errors import NsquarkError

from ..flags.options import Streaming, stream_options
from .failures import one_line
from .progress import Progress, open_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger(__name__)

_POLL_INTERVAL: Final = 0.2
# How long a stop waits for the batch under way. A batch that takes longer is done again at the next start.
_STOP_TIMEOUT: Final = 15.0


class QueryFailed(NsquarkError):
    """A query ended with an error."""


class Interrupted(BaseException):
    """A signal came while the code under way may be left at any point."""


class StopSignal:
    """Whether SIGINT or SIGTERM has come."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        """`then` is called when the signal comes."""
        self._event = threading.Event()
        self._then = then
        self._at_once = False

    def install(self) -> None:
        """Install the handlers. Call it again when Spark has started: Spark installs its own for SIGINT."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within this block a signal raises Interrupted, at whatever point the code is."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.set()
        if self._at_once:
            raise Interrupted

    def set(self) -> None:
        self._then()
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


def read_stream(spark: SparkSession, options: Streaming, schema: str = "") -> DataFrame:
    """The messages of the topics that the flags name."""
    reader = spark.readStream.format("nsq").options(**stream_options(options))
    return (reader.schema(schema) if schema else reader).load()


def run_query(writer: DataStreamWriter, options: Streaming, name: str, stop: StopSignal) -> int:
    """Start a query and wait until it ends; how many messages it has read. Raises QueryFailed."""
    out = open_json(options.progress_json)
    progress = Progress(out)
    try:
        query = _started(writer, options, name)
        while not stop and not _ended(query, _POLL_INTERVAL):
            progress.look(query)
        if query.isActive:
            _stop(query, progress)
        progress.look(query)
    except QueryFailed:
        raise
    except Exception as error:  # Py4J and Spark raise errors of many types
        if not stop:
            raise QueryFailed(one_line(error)) from None
        # The signal has reached Spark's processes, too. The next start does the batch again.
        logger.warning("the batch under way was broken off: %s", one_line(error))
    finally:
        progress.end()
    return progress.messages


def _started(writer: DataStreamWriter, options: Streaming, name: str) -> StreamingQuery:
    writer = writer.queryName(name).option("checkpointLocation", options.checkpoint)
    if isinstance(options.trigger, str):
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options.trigger * 1000:.0f} milliseconds")
    return writer.start()


def _stop(query: StreamingQuery, progress: Progress) -> None:
    """Stop a query after the batch under way, unless that takes too long."""
    batch = progress.batch
    deadline = time.monotonic() + _STOP_TIMEOUT
    while query.isActive and time.monotonic() < deadline:
        status = query.status
        progress.look(query)
        if progress.batch != batch or not (status["isTriggerActive"] and status["isDataAvailable"]):
            break
        if _ended(query, _POLL_INTERVAL / 4):
            return
    query.stop()


def _ended(query: StreamingQuery, within: float) -> bool:
    """Whether the query has ended. Raises the error of a query that has failed."""
    return bool(query.awaitTermination(within))  # type: ignore[arg-type]  # a float works, whatever its annotation says
