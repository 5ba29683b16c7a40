"""From what Spark tells of a query to the report that nsqd takes: names, units and bounds.

docs/http-api.md has the fields. nsqd refuses a whole report if one of its fields cannot be, so everything
that comes from outside is cut and cleaned here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..errors import telling_line

_LONGEST_LINE = 200
_LONGEST_ERROR = 2000
_LONGEST_URL = 500
_MOST = 1e15
_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_NOT_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]+")
_URL = re.compile(r"https?://[!-~]+")
_ADDRESS_OF_OBJECT = re.compile(r"@[0-9a-f]{4,8}$")  # what Java shows of an object that has no name


def describe_query(query_id: str, run_id: str, name: str | None, ui: str | None) -> dict[str, Any]:
    """The fields that stay the same; `ui` is the URL of Spark's own pages."""
    url = f"{ui.rstrip('/')}/StreamingQuery/statistics?id={run_id}" if ui else ""
    return {
        "query_id": query_id,
        "run_id": run_id,
        "query_name": clean_line(name or ""),
        "ui_url": url if len(url) <= _LONGEST_URL and _URL.fullmatch(url) else None,
    }


def describe_batch(progress: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a batch, from the JSON that Spark has for its progress."""
    durations = progress.get("durationMs") or {}
    sink = (progress.get("sink") or {}).get("description") or ""
    return {
        "timestamp_ms": _milliseconds(progress.get("timestamp")),
        "batch": _count(progress.get("batchId")),
        "rows": _count(progress.get("numInputRows")),
        "input_rate": _measure(progress.get("inputRowsPerSecond")),
        "processed_rate": _measure(progress.get("processedRowsPerSecond")),
        "batch_ms": _measure(durations.get("triggerExecution", progress.get("batchDuration"))),
        "sink": clean_line(_ADDRESS_OF_OBJECT.sub("", str(sink)).rpartition("python.")[2]),
    }


def describe_error(text: str) -> str:
    """What went wrong in a line, and then as much of the whole text as there is room for."""
    return _NOT_IN_LINES.sub(" ", f"{telling_line(text)}\n\n{text}")[:_LONGEST_ERROR]


def pack_report(report: Mapping[str, Any]) -> bytes:
    # Escapes would make three bytes for each byte of a text that is not English, and nsqd counts them.
    return json.dumps(report, ensure_ascii=False).encode()


def clean_line(text: str) -> str:
    return _NOT_IN_A_LINE.sub(" ", text)[:_LONGEST_LINE]


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        return None
    return value


def _measure(value: object) -> float | None:
    """Spark has no rate for a batch that took no time, and writes it in several ways."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
        return None
    return round(value, 3)


def _milliseconds(text: object) -> int | None:
    try:
        return _count(round(datetime.fromisoformat(str(text)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return None
