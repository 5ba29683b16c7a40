"""How far a query is: a line for people at most every second, and a JSON line for every batch."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

from nsquark.flags import StartError
from nsquark.gotext import format_os_error

logger = logging.getLogger(__name__)

_BETWEEN_LINES = 1.0


class Query(Protocol):
    """What is asked of a streaming query."""

    @property
    def lastProgress(self) -> Any: ...
    @property
    def recentProgress(self) -> Any: ...


def open_json(path: str) -> IO[str] | None:
    """Where JSON lines go; None if nobody wants them. Raises StartError."""
    if not path:
        return None
    if path == "-":
        return sys.stdout
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise StartError(f"--progress-json: {path!r}: {format_os_error(error)}") from None


def lag(sources: list[dict[str, Any]]) -> int | None:
    """Messages that are there and not in a batch yet; None if the source does not say."""
    behind = None
    for source in sources:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if latest:
            behind = (behind or 0) + sum(max(0, at - ends.get(key, 0)) for key, at in latest.items())
    return behind


def _offsets(told: object) -> dict[tuple[str, str], int]:
    """Positions by topic and nsqd. Spark gives the offset as text, or as what it stands for."""
    document = json.loads(told) if isinstance(told, str) else told
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
    """Of a batch, ready for JSON."""

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
    """For people."""
    behind = "?" if batch["lag"] is None else batch["lag"]
    return (
        f"{batch['query']}: batch {batch['batch']}, {batch['messages']} messages, "
        f"in {batch['input_per_second']:.0f}/s, done {batch['processed_per_second']:.0f}/s, "
        f"lag {behind}, {batch['batch_ms'] / 1000:.2f} s"
    )


class Progress:
    """Tells of each batch of a query once."""

    def __init__(self, out: IO[str] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._told: tuple[int, str] = (-1, "")  # batch and time of the last progress seen
        self._due = 0.0
        self._held: dict[str, Any] | None = None  # a summary that waits for its line
        self.batch = -1  # the last one that is over
        self.messages = 0

    def look(self, query: Query) -> None:
        last = query.lastProgress
        if last is None or self._key(last) == self._told:
            return
        following = [last]
        if last["batchId"] > self._told[0] + 1:  # several since we looked last
            following = [each for each in query.recentProgress if self._key(each) > self._told]
        for progress in following:
            self._told = self._key(progress)
            self._tell(summary(json.loads(progress.json)))
        self._say(False)

    def end(self) -> None:
        """What waits is told."""
        self._say(True)
        if self._out is not None and self._out is not sys.stdout:
            self._out.close()

    @staticmethod
    def _key(progress: Any) -> tuple[int, str]:
        return progress["batchId"], progress["timestamp"]

    def _tell(self, batch: dict[str, Any]) -> None:
        self.batch = batch["batch"]
        self.messages += batch["messages"]
        if self._out is not None:
            self._out.write(json.dumps(batch) + "\n")
            self._out.flush()
        if self._held is not None:  # its messages count in the next line
            batch = {**batch, "messages": batch["messages"] + self._held["messages"]}
        if batch["messages"]:
            self._held = batch

    def _say(self, now: bool) -> None:
        if self._held is not None and (now or self._clock() >= self._due):
            logger.info("%s", line(self._held))
            self._held = None
            self._due = self._clock() + _BETWEEN_LINES
