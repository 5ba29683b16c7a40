"""How long messages take from their publish to their FIN: quantiles over a window of time, per channel.

Two sketches take turns, as in NSQ: each takes the samples of half a window, and both together are asked, so
an answer covers between half a window and a whole one. Samples come by runs, with the number of messages as
their weight. The sketch (DDSketch, within 1 % of the true value) is imported when the first window is made:
only a node that is asked for percentiles pays for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddsketch import LogCollapsingLowestDenseDDSketch as Sketch

ACCURACY = 0.01
MAX_BINS = 2048  # 1 % apart, they span from a microsecond to years
NO_LATENCY: dict[str, Any] = {"count": 0, "percentiles": None}

_id = itemgetter(0)


class LatencyWindow:
    """The newest samples of one channel. Times are ns since the epoch."""

    __slots__ = ("_half", "_newer", "_older", "_turns_at")

    def __init__(self, window_ns: int, now: int) -> None:
        self._half = max(1, window_ns // 2)
        self._newer, self._older = _sketch(), _sketch()
        self._turns_at = now + self._half

    def record(self, published: Sequence[tuple[int, int]], first: int, end: int, now: int) -> None:
        """The messages with ids [first, end) are finished; `published` is of `kernel.timestamps`."""
        if not self._turns_at - self._half <= now < self._turns_at:
            self._turn(now)
        at = max(bisect_right(published, first, key=_id) - 1, 0)
        while first < end and at < len(published):
            at += 1
            until = min(published[at][0], end) if at < len(published) else end
            self._newer.add(max(0, now - published[at - 1][1]), until - first)
            first = until

    def sketches(self, now: int) -> tuple[Sketch, Sketch]:
        if not self._turns_at - self._half <= now < self._turns_at:
            self._turn(now)
        return self._older, self._newer

    def _turn(self, now: int) -> None:
        """A half is over, or more than that. A clock that was set back begins a half anew."""
        self._older = self._newer if abs(now - self._turns_at) < self._half else _sketch()
        self._newer = _sketch()
        self._turns_at = now + self._half


def percentiles(windows: Iterable[LatencyWindow], quantiles: Sequence[float], now: int) -> dict[str, Any]:
    """The figures of `/stats` for these channels together: a count, and the value in ns at each quantile."""
    merged = None
    for window in windows:
        merged = merged or _sketch()
        for each in window.sketches(now):
            if each.count:
                merged.merge(each)
    if merged is None:
        return NO_LATENCY
    values = [round(merged.get_quantile_value(quantile) or 0) for quantile in quantiles]
    return {
        "count": round(merged.count),
        "percentiles": [
            {"quantile": 1 if quantile == 1 else quantile, "value": value}  # `1.0` is not how Go writes it
            for quantile, value in zip(quantiles, values, strict=True)
        ],
    }


def _sketch() -> Sketch:
    from ddsketch import LogCollapsingLowestDenseDDSketch

    return LogCollapsingLowestDenseDDSketch(ACCURACY, MAX_BINS)
