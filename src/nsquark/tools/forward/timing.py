"""The status lines: how long the last deliveries took, per target and in all.

[aggregate]: finished 251 - 99th: 12.50ms - 95th: 9.10ms - avg: 4.02ms
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

logger = logging.getLogger(__name__)

_FEW = 100  # fewer durations than this have no 99th percentile worth the name


class DurationRing:
    """The last `size` durations. Each time the ring wraps, a line tells of them; a `size` of 0 keeps none."""

    def __init__(self, size: int, prefix: str) -> None:
        self.finished = 0
        self._size = size
        self._prefix = prefix
        self._ring: list[float] = []
        if 0 < size < _FEW:
            logger.warning("%s --status-every=%d is too few for a useful 99th percentile", prefix, size)

    def add(self, seconds: float, count: int = 1) -> None:
        """Count `count` deliveries, each of which took this long."""
        size = self._size
        if not size:
            return
        while count:
            place = self.finished % size
            # The sample that wraps is the first of a round: the line includes it and leaves out the oldest.
            wraps = self.finished >= size and place == 0
            some = 1 if wraps else min(count, size - place)
            self._ring[place : place + some] = [seconds] * some
            self.finished += some
            count -= some
            if wraps:
                self._log()

    def _log(self) -> None:
        ordered = sorted(self._ring)
        logger.info(
            "%s finished %d - 99th: %.2fms - 95th: %.2fms - avg: %.2fms",
            self._prefix,
            self.finished,
            percentile(ordered, 99) * 1000,
            percentile(ordered, 95) * 1000,
            sum(ordered) / len(ordered) * 1000,
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of durations in ascending order, by NSQ's rule."""
    index = math.ceil(percent / 100 * len(ordered) + 0.5)
    return ordered[min(index, len(ordered) - 1)]


class StatusLines:
    """The rings of a program: one for everything, and one for each target if there are several."""

    def __init__(self, every: int, addresses: Sequence[str]) -> None:
        several = len(addresses) > 1
        self._targets = [DurationRing(every if several else 0, f"[{address}]:") for address in addresses]
        self._all = DurationRing(every, "[aggregate]:")

    def delivered(self, seconds: float, count: int = 1) -> None:
        self._all.add(seconds, count)

    def target_took(self, target: int, seconds: float, count: int = 1) -> None:
        self._targets[target].add(seconds, count)
