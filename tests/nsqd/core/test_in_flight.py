"""Flights: where they end. `tests/nsqd/core/test_consumer.py` takes them apart."""

from __future__ import annotations

import pytest

from nsquark.nsqd.core.in_flight import Flight


@pytest.mark.parametrize(("first", "count", "end"), [(0, 1, 1), (100, 10, 110), (2**64 - 1, 1, 2**64)])
def test_a_flight_ends_behind_its_last_id_also_if_that_is_the_last_of_all(
    first: int, count: int, end: int
) -> None:
    assert Flight(first, count, 0, 1, 0, 0).end == end
