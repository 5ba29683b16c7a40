"""The listener that Spark calls for its streaming queries.

Spark calls `onQueryStarted` in the thread of the query, and the other methods one after the other for all
queries of a session. So each method only notes what it was told, and none of them raises.
"""

from __future__ import annotations

import atexit
import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from nsquark.errors import UsageError

from .document import describe_query
from .sender import ProgressSender, Publisher

logger = logging.getLogger(__name__)

_AT_EXIT = 2.0  # seconds that the end of the process may wait for the last report

_P = ParamSpec("_P")


def _harmless(method: Callable[_P, None]) -> Callable[_P, None]:
    """Log whatever `method` raises: no report is worth a query."""

    @functools.wraps(method)
    def wrapper(*arguments: _P.args, **named: _P.kwargs) -> None:
        try:
            method(*arguments, **named)
        except Exception as error:
            logger.warning("the progress of a query is not reported: %s", error)

    return wrapper


class ProgressListener(StreamingQueryListener):
    """Logs, publishes and reports the progress of every query of a session that reads `nsq`."""

    def __init__(self, spark: SparkSession, log_level: int = logging.INFO) -> None:
        self._java_session: Any = spark._jsparkSession
        self._ui = spark.sparkContext.uiWebUrl
        self._sender = ProgressSender(log_level=log_level)

    def publish_to(self, publisher: Publisher) -> None:
        """Call `publisher` with a list of LogProgress at every report, in a thread of its own.

        An exception of the publisher is logged.
        """
        self._sender.publish_to(publisher)

    def wait(self, timeout: float, ends: bool = False) -> bool:
        """Wait until every report is sent; with `ends`, until all queries have ended as well.

        Returns whether it is so, after `timeout` seconds at the most.
        """
        return self._sender.wait(timeout, ends)

    @_harmless
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._start(str(event.id), str(event.runId), event.name)

    @_harmless
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        run_id = str(progress.runId)
        if not self._sender.knows(run_id):  # it was running when the listener came
            self._start(str(progress.id), run_id, progress.name)
        self._sender.progress(run_id, progress.json)

    @_harmless
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._sender.idle(str(event.runId))

    @_harmless
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._sender.end(str(event.runId), event.exception or "")

    def _start(self, query_id: str, run_id: str, name: str | None) -> None:
        query = self._java_session.streams().get(query_id)
        execution = None if query is None else query.streamingQuery()
        self._sender.start(run_id, describe_query(query_id, run_id, name, self._ui), execution)


_listeners: WeakKeyDictionary[SparkSession, ProgressListener] = WeakKeyDictionary()


def report_progress(
    spark: SparkSession, publish: Publisher | None = None, log_level: int = logging.INFO
) -> ProgressListener:
    """Report the progress of the session's streaming queries that read `nsq`, from now on.

    The nsqds keep the reports, nsqadmin shows them, and /metrics of each nsqd has the figures of its logs. A
    line for each topic and nsqd is logged at `log_level`. `publish` gets the same as a list of LogProgress.
    A second call for the same session only adds its `publish`.
    Raises UsageError for a session of Spark Connect, which does not show the options of a query.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UsageError("the progress of queries cannot be reported over Spark Connect")
    listener = _listeners.get(spark)
    if listener is None:
        listener = _listeners[spark] = ProgressListener(spark, log_level)
        spark.streams.addListener(listener)
        atexit.register(listener.wait, _AT_EXIT)
    if publish is not None:
        listener.publish_to(publish)
    return listener
