"""Whether a series is flat."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

SETTLING = 0.3  # the share of the beginning that may look different: caches fill, threads start


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """How much the values grow in a second, by the median of the slopes between all pairs (Theil and Sen).

    One outlier, such as a moment in which the machine was busy, does not change it.
    """
    begin = int(len(times) * SETTLING)
    times, values = times[begin:], values[begin:]
    step = max(1, len(times) // 300)  # as many pairs as a moment can look at
    pairs = list(zip(times, values, strict=True))[::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(pairs)
        for later in pairs[number + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """The growth over the whole time as a share of the middle value."""
    if len(values) < 3:
        return 0.0
    return slope(times, values) * (times[-1] - times[0]) / (median(values) or 1.0)
