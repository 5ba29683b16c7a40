"""`/channel/report` and `/channel/reports`: pipelines tell their progress, and nsqadmin asks for it.

A report is a JSON object. Each field has a type and a bound, since whatever is kept here is shown to people:
a link is http or https, a text has no control characters, and a number is finite.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from nsquark.http import JSON_TYPE, HttpError, Request, Response, joined, pack_json, v1_body, v1_empty
from nsquark.names import is_valid_name
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.stats.pipeline_reports import MOST_REPORTS, ChannelKey

from .arguments import find_channel, find_topic, number

MAX_REPORT = 16 << 10  # bytes of a body
STATES = ("running", "ended", "failed")
MOST_COUNT = (1 << 63) - 1
MOST_MEASURE = 1e15

EMPTY = v1_empty()
_URL = re.compile(r"https?://[!-~]+")
_LINE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]*")
_LINES = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]*")  # with tabs and line feeds


def _is_text(value: object, pattern: re.Pattern[str], longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and pattern.fullmatch(value) is not None


def _is_line(value: object) -> bool:
    return _is_text(value, _LINE, 200)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT


def _is_measure(value: object) -> bool:
    # NaN and infinity, which Python's JSON has and JSON has not, are outside of these bounds.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_MEASURE


FIELDS: dict[str, Callable[[object], bool]] = {
    "query_id": lambda value: value != "" and _is_line(value),
    "run_id": _is_line,
    "query_name": _is_line,
    "state": lambda value: isinstance(value, str) and value in STATES,
    "timestamp_ms": _is_count,
    "batch": _is_count,
    "rows": _is_count,
    "input_rate": _is_measure,
    "processed_rate": _is_measure,
    "batch_ms": _is_measure,
    "lag_messages": _is_count,
    "lag_seconds": _is_measure,
    "log_rows": _is_count,
    "log_rate": _is_measure,
    "log_lag_messages": _is_count,
    "log_lag_seconds": _is_measure,
    "sink": _is_line,
    "ui_url": lambda value: _is_text(value, _URL, 500),
    "error": lambda value: _is_text(value, _LINES, 2000),
}
REQUIRED = ("query_id", "state")


def parse_report(body: bytes) -> dict[str, Any]:
    """The report with all its fields, None for those that it does not tell.

    Fields that are not known here are left out: a newer pipeline may tell more. Raises HttpError.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):  # ValueError also for what is no UTF-8
        raise HttpError(400, "INVALID_REPORT", {"reason": "not JSON"}) from None
    if not isinstance(document, dict):
        raise HttpError(400, "INVALID_REPORT", {"reason": "not a JSON object"})
    report = {}
    for name, fits in FIELDS.items():
        value = document.get(name)
        if not fits(value) and (value is not None or name in REQUIRED):
            reason = f"{name} cannot be {ascii(value)[:100]}"
            raise HttpError(400, "INVALID_REPORT", {"reason": reason})
        report[name] = value
    return report


class ReportApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def report(self, request: Request) -> Response:
        channel = find_channel(self._broker, request)
        report = parse_report(request.body)
        report["received_ms"] = time.time_ns() // 1_000_000
        self._broker.reports.add(channel.topic.name, channel.name, report)
        return EMPTY

    async def reports(self, request: Request) -> Response:
        """Of the topic and the channel that are named, or of all; of those channels that have reports."""
        topic, channel = (request.query.get(name) for name in ("topic", "channel"))
        limit = number(request, "limit", MOST_REPORTS, MOST_REPORTS)
        if topic is not None:
            find_topic(self._broker, request)
        if channel is not None and not is_valid_name(channel):
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        if topic is not None and channel is not None:
            find_channel(self._broker, request)
        wanted = [
            key
            for key in self._broker.reports.channels()
            if topic in (None, key[0]) and channel in (None, key[1])
        ]
        return v1_body(await joined(self._pieces(wanted, limit)), JSON_TYPE)

    def _pieces(self, wanted: list[ChannelKey], limit: int) -> Iterator[str]:
        self._broker.reports.expire(time.time_ns() // 1_000_000)
        yield '{"channels":['
        comma = ""
        for key in wanted:
            text = self._channel_json(key, limit)
            if text:
                yield comma + text
                comma = ","
        yield "]}"

    def _channel_json(self, key: ChannelKey, limit: int) -> str:
        """Empty if the channel has gone meanwhile, or has nothing to tell."""
        kept = self._broker.reports.of(*key, time.time_ns() // 1_000_000)
        channel = self._find(key)
        if kept is None or channel is None:
            return ""
        head = {"topic_name": key[0], "channel_name": key[1], "depth": channel.depth}
        error = "null" if kept.error is None else kept.error.text
        reports = ",".join(kept.texts(limit))
        return f'{pack_json(head)[:-1]},"last_error":{error},"reports":[{reports}]}}'

    def _find(self, key: ChannelKey) -> Channel | None:
        topic = self._broker.topics.get(key[0])
        return None if topic is None else topic.channels.get(key[1])
