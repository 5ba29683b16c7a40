"""Spans of logs cut into partitions: what one task reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from .offsets import Span


@dataclass
class LogPartition(InputPartition):
    """A span, and where its nsqd is now."""

    span: Span
    url: str


def cut(spans: Sequence[Span], at_least: int, max_records: int | None) -> list[Span]:
    """The spans in at least so many pieces (while there are rows for them), none larger than that."""
    total = sum(span.rows for span in spans)
    pieces: list[Span] = []
    for span in spans:
        number = 1
        if len(spans) < at_least:
            number = max(1, round(at_least * span.rows / total))
        if max_records is not None:
            number = max(number, -(-span.rows // max_records))
        number = min(number, span.rows)
        edges = [span.start + span.rows * each // number for each in range(number + 1)]
        pieces += [span._replace(start=low, end=high) for low, high in pairwise(edges)]
    return pieces
