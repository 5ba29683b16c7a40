"""The bounds that pushed filters leave."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from nsquark.spark.source.directory import Node
from nsquark.spark.source.filters import FilterBounds, PushFilters
from nsquark.spark.source.logs import LogRange

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def bounds(*filters: Filter) -> FilterBounds:
    found = FilterBounds()
    assert PushFilters(found)(list(filters)) == list(filters)  # all of them, for Spark to apply again
    return found


@pytest.mark.parametrize(
    ("filters", "first", "end"),
    [
        ([], 0, None),
        ([GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 7)], 3, 7),
        ([GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 7)], 4, 8),
        ([GreaterThan(("offset",), 3), GreaterThan(("offset",), 1), EqualTo(("offset",), 5)], 5, 6),
        ([EqualTo(("value",), b"x"), IsNotNull(("offset",))], 0, None),
    ],
)
def test_positions(filters: list[Filter], first: int, end: int | None) -> None:
    found = bounds(*filters)
    assert (found.first, found.end) == (first, end)


def test_times() -> None:
    later = NOON + timedelta(hours=1)
    found = bounds(GreaterThan(("timestamp",), NOON), LessThan(("timestamp",), later))
    assert (found.since, found.until) == (NOON, later)


def test_names() -> None:
    log = LogRange("t", "id", Node("h:4150", "http://h:4151"), "e", 0, 1, 100)
    assert bounds().include(log)
    assert bounds(In(("topic",), ("t", "u")), EqualTo(("nsqd",), "h:4150")).include(log)
    assert not bounds(In(("topic",), ("t", "u")), EqualTo(("topic",), "u")).include(log)
