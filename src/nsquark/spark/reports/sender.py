"""The thread that sends reports. Spark's events come in from other threads, and wait for nothing here.

Of each query only the newest event is waiting, so a slow nsqd costs reports and no memory. A query reports at
most once in an interval, but its end is told at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from nsquark.errors import NsquarkError

from ..source.logs import LogKey, LogRange
from .document import describe_batch, describe_error
from .log_progress import LogProgress, rate_of, rows_by_log
from .query_source import Lag, QuerySource, assign_offsets, find_sources

logger = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two reports of a query
Publisher = Callable[[list[LogProgress]], object]
_IDLE = {"rows": 0, "input_rate": 0.0, "processed_rate": 0.0}


class _Query:
    """What is known of one run of a query. The sender's lock guards all of it but `sources`."""

    def __init__(self, fixed: dict[str, Any], execution: Any) -> None:
        self.fixed = fixed  # the fields that stay the same
        self.execution = execution  # in the JVM; None when the sources are known
        self.sources: list[QuerySource] | None = None
        self.progress = ""  # Spark's JSON of the last batch
        self.idle = False
        self.ended = False
        self.error = ""
        self.waiting = False
        self.due = 0.0

    def report(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The report without the lag, and Spark's progress of the sources."""
        progress = json.loads(self.progress) if self.progress else {}
        report = {**self.fixed, "state": "running", **(describe_batch(progress) if progress else {})}
        if self.idle:
            report |= _IDLE
        if self.ended:
            report["state"] = "failed" if self.error else "ended"
        if self.error:
            report["error"] = describe_error(self.error)
        return report, progress.get("sources") or []


class ProgressSender:
    def __init__(self, interval: float = _INTERVAL, log_level: int = logging.INFO) -> None:
        self._interval = interval
        self._log_level = log_level
        self._publishers: list[Publisher] = []
        self._changed = threading.Condition()
        self._queries: dict[str, _Query] = {}  # by run
        self._sending = False
        self._thread: threading.Thread | None = None

    def publish_to(self, publisher: Publisher) -> None:
        """Call `publisher` with the progress of every report, in the thread that sends."""
        self._publishers.append(publisher)

    # ---- what Spark's threads tell; none of it waits for the network

    def start(self, run_id: str, fixed: dict[str, Any], execution: Any) -> None:
        """A query has started, or was running when the listener came."""
        with self._changed:
            self._queries.setdefault(run_id, _Query(fixed, execution))

    def knows(self, run_id: str) -> bool:
        return run_id in self._queries

    def progress(self, run_id: str, text: str) -> None:
        self._note(run_id, lambda query: vars(query).update(progress=text, idle=False))

    def idle(self, run_id: str) -> None:
        self._note(run_id, lambda query: vars(query).update(idle=True))

    def end(self, run_id: str, error: str) -> None:
        self._note(run_id, lambda query: vars(query).update(ended=True, error=error, due=0.0))

    def _note(self, run_id: str, change: Callable[[_Query], None]) -> None:
        with self._changed:
            query = self._queries.get(run_id)
            if query is None:
                return
            change(query)
            query.waiting = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nsq-progress", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float, ends: bool = False) -> bool:
        """Wait until everything that was told is sent; with `ends`, until all queries have ended as well."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle(ends), timeout)

    def _is_idle(self, ends: bool) -> bool:
        left = any(ends or query.waiting for query in self._queries.values())
        return not left and not self._sending

    # ---- the thread

    def _run(self) -> None:
        while True:
            query = self._take()
            try:
                with self._changed:
                    report, progress = query.report()
                self._send(query, report, progress)
            except Exception as error:  # of Py4J, of the network, of an nsqd: none of them ends the reports
                logger.debug("no progress is reported of query %s: %s", query.fixed["query_id"], error)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _send(self, query: _Query, report: dict[str, Any], sources: list[dict[str, Any]]) -> None:
        """Measure the progress of all sources, and log, publish and report it. Raises errors of Py4J."""
        found = _find_progress(query, report, sources)
        progress = [each for _, _, by_log in found for each in by_log.values()]
        for each in progress:
            logger.log(self._log_level, "%s", each)
        for publish in list(self._publishers):
            try:
                publish(progress)
            except Exception as error:
                logger.warning("the progress of a query is not published: %s", error)
        report |= _sum_lags(progress)
        for source, logs, by_log in found:
            source.tell(logs, report, {key: each.report() for key, each in by_log.items()})

    def _take(self) -> _Query:
        """The next query to report of, when its time has come."""
        with self._changed:
            while True:
                waiting = [each for each in self._queries.values() if each.waiting]
                query = min(waiting, key=lambda each: each.due, default=None)
                now = time.monotonic()
                if query is not None and query.due <= now:
                    break
                self._changed.wait(None if query is None else query.due - now)
            query.waiting = False
            query.due = now + self._interval
            if query.ended:
                del self._queries[query.fixed["run_id"]]
            self._sending = True
            return query


def _find_progress(
    query: _Query, report: dict[str, Any], sources: list[dict[str, Any]]
) -> list[tuple[QuerySource, list[LogRange], dict[LogKey, LogProgress]]]:
    """Ask the nsqds of all sources, and measure the progress in their logs. Raises errors of Py4J."""
    if query.sources is None:
        query.sources = find_sources(query.execution) if query.execution is not None else []
        query.execution = None
    found = []
    for source, start, end, count in assign_offsets(query.sources, sources):
        try:
            logs = source.find_logs()
        except NsquarkError as error:  # the nsqds of another source may be there
            logger.debug("no progress is reported of query %s: %s", report["query_id"], error)
            continue
        lags, rows = source.lags(logs, end), rows_by_log(start, end, count)
        progress = {}
        for log in logs:
            own_rows = 0 if query.idle else rows.get(log.key)
            lag = lags.get(log.key, Lag(None, None))
            progress[log.key] = LogProgress(
                query_id=report["query_id"],
                query_name=report["query_name"],
                topic=log.topic,
                nsqd=log.node.name,
                channel=source.options.channel,
                batch=report.get("batch"),
                batch_seconds=None if report.get("batch_ms") is None else report["batch_ms"] / 1000,
                rows=own_rows,
                rate=rate_of(own_rows, report),
                lag_messages=lag.messages,
                lag_seconds=lag.seconds,
            )
        found.append((source, logs, progress))
    return found


def _sum_lags(progress: list[LogProgress]) -> dict[str, Any]:
    messages = [each.lag_messages for each in progress if each.lag_messages is not None]
    seconds = [each.lag_seconds for each in progress if each.lag_seconds is not None]
    return {
        "lag_messages": sum(messages) if messages else None,
        "lag_seconds": max(seconds) if seconds else None,
    }
