"""A streaming query from its start to its end: by itself, by a signal, or by a failure."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

from nsquark.errors import NsquarkError

from .failures import one_line
from .options import Streaming, stream_options
from .progress import Progress, open_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK: Final = 0.2
# How long a stop waits for the batch under way. What it does not wait for is done again at the next start.
_PATIENCE: Final = 15.0


class QueryFailed(NsquarkError):
    """A query ended by itself, and not well."""


class Interrupted(BaseException):
    """A signal has come before there was anything to end."""


class Stop:
    """Whether SIGINT or SIGTERM has come."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        """`then` is called when it comes."""
        self._event = threading.Event()
        self._then = then
        self._at_once = False

    def install(self) -> None:
        """To be called again after Spark's start, which takes SIGINT for itself."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """What is done meanwhile may be left anywhere: a signal raises Interrupted."""
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
    """The topics, as the flags say."""
    reader = spark.readStream.format("nsq").options(**stream_options(options))
    return (reader.schema(schema) if schema else reader).load()


def run_query(writer: DataStreamWriter, options: Streaming, name: str, stop: Stop) -> int:
    """Until the end; how many messages it has taken. Raises QueryFailed."""
    out = open_json(options.progress_json)
    progress = Progress(out)
    try:
        query = _started(writer, options, name)
        while not stop and not _ended(query, _LOOK):
            progress.look(query)
        if query.isActive:
            _stop(query, progress)
        progress.look(query)
    except QueryFailed:
        raise
    except Exception as error:  # whatever comes out of Py4J and Spark
        raise QueryFailed(one_line(error)) from None
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
    """After the batch under way, if that does not take too long."""
    batch = progress.batch
    deadline = time.monotonic() + _PATIENCE
    while query.isActive and time.monotonic() < deadline:
        status = query.status
        progress.look(query)
        if progress.batch != batch or not (status["isTriggerActive"] and status["isDataAvailable"]):
            break
        if _ended(query, _LOOK / 4):
            return
    query.stop()


def _ended(query: StreamingQuery, within: float) -> bool:
    """Raises what the query failed with."""
    return bool(query.awaitTermination(within))  # type: ignore[arg-type]  # it takes fractions of a second
