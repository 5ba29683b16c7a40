"""The progress of a query: a log line at most every second, and a JSON line for every batch."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

from nsquark.cli.flags import StartError
from nsquark.gotext import format_os_error

logger = logging.getLogger(__name__)

_BETWEEN_LINES = 1.0


class Query(Protocol):
    """The part of a streaming query that progress needs."""

    @property
    def lastProgress(self) -> Any: ...
    @property
    def recentProgress(self) -> Any: ...


def open_json(path: str) -> IO[str] | None:
    """The file for JSON lines; None if the flag is not given. Raises StartError."""
    if not path:
        return None
    if path == "-":
        return sys.stdout
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise StartError(f"--progress-json: {path!r}: {format_os_error(error)}") from None


def lag(sources: list[dict[str, Any]]) -> int | None:
    """How many messages are in the logs and not yet in a batch; None if the source does not tell."""
    behind = None
    for source in sources:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if latest:
            behind = (behind or 0) + sum(max(0, at - ends.get(key, 0)) for key, at in latest.items())
    return behind


def _offsets(offset: object) -> dict[tuple[str, str], int]:
    """Positions by topic and nsqd. Spark gives an offset as JSON text, or as the parsed document."""
    document = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(document, dict):
        return {}
    return {
        (topic, nsqd): place["offset"]
        for topic, nsqds in document.items()
        if isinstance(nsqds, dict)
        for nsqd, place in nsqds.items()
        if isinstance(place, dict) and isinstance(place.get("offset"), int)
    }


def summary(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress of one batch, ready for JSON."""

    def rate(name: str) -> float:
        value = progress.get(name)
        return round(value, 1) if isinstance(value, int | float) and math.isfinite(value) else 0.0

    durations = progress.get("durationMs") or {}
    return {
        "query": progress.get("name"),
        "batch": progress.get("batchId"),
        "timestamp": progress.get("timestamp"),
        "messages": progress.get("numInputRows", 0),
        "input_per_second": rate("inputRowsPerSecond"),
        "processed_per_second": rate("processedRowsPerSecond"),
        "lag": lag(progress.get("sources") or []),
        "batch_ms": durations.get("triggerExecution", 0),
        "durations_ms": durations,
        "watermark": (progress.get("eventTime") or {}).get("watermark"),
    }


def line(batch: dict[str, Any]) -> str:
    """The log line of a summary."""
    behind = "?" if batch["lag"] is None else batch["lag"]
    return (
        f"{batch['query']}: batch {batch['batch']}, {batch['messages']} messages, "
        f"in {batch['input_per_second']:.0f}/s, done {batch['processed_per_second']:.0f}/s, "
        f"lag {behind}, {batch['batch_ms'] / 1000:.2f} s"
    )


class Progress:
    """Reports each batch of a query once."""

    def __init__(self, out: IO[str] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._reported: tuple[int, str] = (-1, "")  # batch and time of the last progress reported
        self._due = 0.0
        self._waiting: dict[str, Any] | None = None  # a summary that was not logged yet
        self.batch = -1  # the last batch that has ended
        self.messages = 0

    def look(self, query: Query) -> None:
        """Report the batches that have ended since the last look."""
        last = query.lastProgress
        if last is None or self._key(last) == self._reported:
            return
        following = [last]
        if last["batchId"] > self._reported[0] + 1:  # several batches have ended
            following = [each for each in query.recentProgress if self._key(each) > self._reported]
        for progress in following:
            self._reported = self._key(progress)
            self._report(summary(json.loads(progress.json)))
        self._log(False)

    def end(self) -> None:
        """Log the last summary, and close the file."""
        self._log(True)
        if self._out is not None and self._out is not sys.stdout:
            self._out.close()

    @staticmethod
    def _key(progress: Any) -> tuple[int, str]:
        return progress["batchId"], progress["timestamp"]

    def _report(self, batch: dict[str, Any]) -> None:
        self.batch = batch["batch"]
        self.messages += batch["messages"]
        if self._out is not None:
            self._out.write(json.dumps(batch) + "\n")
            self._out.flush()
        if self._waiting is not None:  # the next line counts its messages too
            batch = {**batch, "messages": batch["messages"] + self._waiting["messages"]}
        if batch["messages"]:
            self._waiting = batch

    def _log(self, now: bool) -> None:
        if self._waiting is not None and (now or self._clock() >= self._due):
            logger.info("%s", line(self._waiting))
            self._waiting = None
            self._due = self._clock() + _BETWEEN_LINES
