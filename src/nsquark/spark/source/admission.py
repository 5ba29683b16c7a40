"""How much of what there is goes into the next batch: Spark's limit, and the least that is worth a batch."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from ..options import StreamOptions
from .directory import Log
from .offsets import Key, share


def default_limit(options: StreamOptions) -> ReadLimit:
    if options.max_offsets is not None:
        return ReadMaxRows(options.max_offsets)
    if options.max_bytes is not None:
        return ReadMaxBytes(options.max_bytes)
    return ReadAllAvailable()


def admit(counts: Mapping[Key, int], logs: Mapping[Key, Log], limit: ReadLimit) -> dict[Key, int]:
    """How many of each log's messages may be read."""
    if isinstance(limit, ReadMaxRows):
        return share(counts, limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        # by the average of each log; at least one, since a message larger than the limit must come through
        size = sum(count * _average(logs[key]) for key, count in counts.items())
        total = sum(counts.values())
        if size > limit.max_bytes:
            return share(counts, max(1, int(total * limit.max_bytes / size)))
    return dict(counts)


def _average(log: Log) -> float:
    return log.bytes / max(1, log.next - log.first)


class Least:
    """`minOffsetsPerTrigger`: a smaller batch waits, but not longer than `maxTriggerDelay`."""

    def __init__(self, options: StreamOptions) -> None:
        self._rows = options.min_offsets or 0
        self._delay = options.max_delay
        self._last = float("-inf")  # the first batch does not wait

    def waits(self, rows: int) -> bool:
        now = time.monotonic()
        if rows < self._rows and now - self._last < self._delay:
            return True
        if rows:
            self._last = now
        return False
