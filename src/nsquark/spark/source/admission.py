"""How many messages go into the next batch: at most Spark's limit, and at least `minOffsetsPerTrigger`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from .logs import LogKey, LogRange
from .options import StreamOptions


def default_limit(options: StreamOptions) -> ReadLimit:
    if options.max_offsets is not None:
        return ReadMaxRows(options.max_offsets)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


def admit(
    counts: Mapping[LogKey, int], logs: Mapping[LogKey, LogRange], limit: ReadLimit
) -> dict[LogKey, int]:
    """How many of the `counts` messages that wait in each log to read now."""
    if isinstance(limit, ReadMaxRows):
        return share(counts, limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        # The size of a message is taken to be the average of its log. At least one message is admitted, since
        # a message larger than the limit must be read too.
        size = sum(count * _average_bytes(logs[key]) for key, count in counts.items())
        total = sum(counts.values())
        if size > limit.max_bytes:
            return share(counts, max(1, int(total * limit.max_bytes / size)))
    return dict(counts)


def _average_bytes(log: LogRange) -> float:
    return log.bytes / max(1, log.next - log.first)


def share(counts: Mapping[LogKey, int], limit: int) -> dict[LogKey, int]:
    """Share `limit` among the logs in proportion to their counts.

    No log goes without if the limit is large enough to give each log one message.
    """
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    shares = {key: count * limit // total for key, count in counts.items()}
    left = limit - sum(shares.values())
    # Rounding down leaves a remainder. It goes to the smallest shares, so that a small log does not wait for
    # ever beside a large one.
    for key in sorted(counts, key=lambda key: (shares[key], key)):
        if left <= 0:
            break
        if shares[key] < counts[key]:
            shares[key] += 1
            left -= 1
    return shares


class MinimumRows:
    """`minOffsetsPerTrigger`: a smaller batch waits, but not longer than `maxTriggerDelay`."""

    def __init__(self, options: StreamOptions) -> None:
        self._rows = options.min_offsets or 0
        self._max_delay = options.max_delay
        self._last_batch = float("-inf")  # the first batch does not wait

    def must_wait(self, rows: int) -> bool:
        """Whether a batch of so many rows must wait for more; if not, it counts as begun now."""
        now = time.monotonic()
        if rows < self._rows and now - self._last_batch < self._max_delay:
            return True
        if rows:
            self._last_batch = now
        return False
