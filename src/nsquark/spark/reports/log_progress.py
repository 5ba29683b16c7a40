"""How a query is getting on with each log that it reads: for the log, for metrics, and for the log's nsqd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..source.logs import LogKey
from ..source.offsets import Offset


class LogProgress(NamedTuple):
    """The last batch of a query, as far as it is about one topic at one nsqd. None where it is not known."""

    query_id: str
    query_name: str
    topic: str
    nsqd: str
    channel: str
    batch: int | None
    batch_seconds: float | None
    rows: int | None
    rate: float | None  # rows a second, while the batch ran
    lag_messages: int | None
    lag_seconds: float | None  # the age of the oldest message that no batch has processed

    def __str__(self) -> str:
        return (
            f"query {self.query_name or self.query_id}, topic {self.topic} at nsqd {self.nsqd}: "
            f"batch {_told(self.batch)} had {_told(self.rows)} messages in {_told(self.batch_seconds)} s "
            f"({_told(self.rate)} a second), {_told(self.lag_messages)} messages wait, "
            f"the oldest for {_told(self.lag_seconds)} s"
        )

    def report(self) -> dict[str, Any]:
        """The fields of a report that are about this log alone."""
        return {
            "log_rows": self.rows,
            "log_rate": self.rate,
            "log_lag_messages": self.lag_messages,
            "log_lag_seconds": self.lag_seconds,
        }


def _told(value: object) -> str:
    return "?" if value is None else f"{value}"


def rows_by_log(start: Offset, end: Offset, rows: int | None) -> dict[LogKey, int]:
    """How many messages of each log lie between the two offsets of a batch with so many rows."""
    if not start and len(end) == 1 and rows is not None:  # Spark does not tell where the first batch begins
        return dict.fromkeys(end, rows)
    return {
        key: max(0, until.position - since.position)
        for key, until in end.items()
        if (since := start.get(key)) is not None and since.epoch == until.epoch
    }


def rate_of(rows: int | None, report: Mapping[str, Any]) -> float | None:
    """Rows a second of the batch that a report is about; 0 for a query that is idle."""
    milliseconds = report.get("batch_ms")
    if rows is None or not milliseconds:
        return None
    return round(rows / float(milliseconds) * 1000, 3)
