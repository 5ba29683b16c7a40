"""Cutting positions into partitions. One task reads one partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from .offsets import Span


@dataclass
class LogPartition(InputPartition):
    """A span, and the URL that its nsqd has now."""

    span: Span
    url: str


def cut_spans(spans: Sequence[Span], at_least: int, max_rows: int | None) -> list[Span]:
    """Cut spans into `at_least` pieces or more, if there are rows enough, each of at most `max_rows` rows."""
    counts = count_pieces([span.rows for span in spans], at_least, max_rows)
    return [
        span._replace(start=start, end=end)
        for span, count in zip(spans, counts, strict=True)
        for start, end in cut_range(span.start, span.end, count)
    ]


def count_pieces(rows: Sequence[int], at_least: int, max_rows: int | None) -> list[int]:
    """Into how many pieces to cut each range of so many rows."""
    total = sum(rows)
    counts = []
    for each in rows:
        count = 1
        if len(rows) < at_least:
            count = max(1, round(at_least * each / total))
        if max_rows is not None:
            count = max(count, -(-each // max_rows))
        counts.append(min(count, each))
    return counts


def cut_range(start: int, end: int, count: int) -> Iterable[tuple[int, int]]:
    """Cut the range [start, end) into `count` ranges of about the same size."""
    return pairwise(start + (end - start) * each // count for each in range(count + 1))
