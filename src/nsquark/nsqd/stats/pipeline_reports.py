"""What pipelines have told of their progress: the last reports of each channel, in memory.

A pipeline reads a topic's log through a channel and reports after its batches. The reports go with the
channel and with the process. They are bounded in number (for each channel), in bytes (of all channels) and in
age. A pipeline that reports too much drives out its own reports first, and then those of the channel that has
been silent for the longest time.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nsquark.http import pack_json

MOST_REPORTS = 60  # of a channel
MOST_BYTES = 16 << 20  # of all channels together
OLDEST = 7 * 86_400_000  # ms
CHANNEL_OVERHEAD = 4096  # bytes of a channel that has reports: its last one once more, and the containers

# What /stats tells of a channel's last report.
SUMMARY = (
    "query_name", "state", "batch", "processed_rate", "batch_ms",
    "lag_messages", "lag_seconds", "received_ms",
)  # fmt: skip

ChannelKey = tuple[str, str]  # topic, channel


class _Packed(NamedTuple):
    received_ms: int
    text: str  # JSON

    @property
    def size(self) -> int:
        return sys.getsizeof(self.text) + sys.getsizeof(self)


class ChannelReports:
    """The reports of one channel, oldest first, and the last one that told an error."""

    __slots__ = ("_reports", "error", "last", "size")

    def __init__(self) -> None:
        self.last: Mapping[str, Any] = {}
        self.error: _Packed | None = None
        self.size = CHANNEL_OVERHEAD
        self._reports: deque[_Packed] = deque()

    def add(self, report: Mapping[str, Any]) -> None:
        packed = _Packed(report["received_ms"], pack_json(report))
        self.last = report
        self._reports.append(packed)
        self.size += packed.size
        if report["error"]:
            self.size += packed.size - (self.error.size if self.error else 0)
            self.error = packed
        while len(self._reports) > MOST_REPORTS:
            self._drop_first()

    def expire(self, oldest_ms: int) -> None:
        while self._reports and self._reports[0].received_ms < oldest_ms:
            self._drop_first()
        if self.error is not None and self.error.received_ms < oldest_ms:
            self.size -= self.error.size
            self.error = None

    def texts(self, limit: int) -> list[str]:
        """The newest `limit` reports as JSON, oldest first."""
        begin = max(0, len(self._reports) - limit)
        return [each.text for number, each in enumerate(self._reports) if number >= begin]

    def _drop_first(self) -> None:
        self.size -= self._reports.popleft().size


class PipelineReports:
    def __init__(self) -> None:
        # The channel that has been silent for the longest time is the first one.
        self._channels: OrderedDict[ChannelKey, ChannelReports] = OrderedDict()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._channels)

    def add(self, topic: str, channel: str, report: Mapping[str, Any]) -> None:
        """Keep a report, which has `received_ms` and `error` among its fields."""
        key = topic, channel
        kept = self._channels.get(key)
        if kept is None:
            kept = self._channels[key] = ChannelReports()
            self._size += kept.size
        self._channels.move_to_end(key)
        self._size -= kept.size
        kept.add(report)
        self._size += kept.size
        while self._size > MOST_BYTES and len(self._channels) > 1:
            self._forget(next(iter(self._channels)))
        self.expire(report["received_ms"])

    def forget(self, topic: str, channel: str) -> None:
        """The channel has come or gone: what was told of another one of this name does not count."""
        if self._channels:
            self._forget((topic, channel))

    def expire(self, now_ms: int) -> None:
        """Forget the channels whose last report is too old."""
        while self._channels:
            key, kept = next(iter(self._channels.items()))
            if kept.last["received_ms"] >= now_ms - OLDEST:
                break
            self._forget(key)

    def of(self, topic: str, channel: str, now_ms: int) -> ChannelReports | None:
        """What is known of a channel, without what is too old."""
        kept = self._channels.get((topic, channel))
        if kept is None:
            return None
        self._size -= kept.size
        kept.expire(now_ms - OLDEST)
        self._size += kept.size
        return kept

    def summary(self, topic: str, channel: str) -> dict[str, Any] | None:
        """The last report in short; None for a channel that has none."""
        kept = self._channels.get((topic, channel))
        return None if kept is None else {name: kept.last[name] for name in SUMMARY}

    def last(self) -> Iterator[tuple[ChannelKey, Mapping[str, Any]]]:
        """The last report of every channel that has one."""
        return iter([(key, kept.last) for key, kept in self._channels.items()])

    def channels(self) -> list[ChannelKey]:
        return sorted(self._channels)

    def _forget(self, key: ChannelKey) -> None:
        kept = self._channels.pop(key, None)
        if kept is not None:
            self._size -= kept.size
