"""Sums, rates, and answers that are no answers."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.errors import ConnectionLost
from nsquark.tools.nsq_stat.counters import Counters, parse_counters, rates, total


def test_counters_are_summed() -> None:
    one = Counters(1, 2, 3, 4, 5, 6, 7, 8)
    assert total([one, one]) == Counters(2, 4, 6, 8, 10, 12, 14, 16)
    assert total([]) == Counters()


def test_rates_are_cut_towards_zero() -> None:
    old, new = Counters(depth=10, messages=100), Counters(depth=0, messages=105)
    assert rates(old, new, 2.0) == (2, 7)
    assert rates(new, old, 2.0) == (-2, -7)


def test_only_the_channel_of_the_topic_counts() -> None:
    channels = [{"channel_name": "x", "depth": 1}, {"channel_name": "c", "depth": 5, "client_count": 2}]
    topics = [{"topic_name": "other", "channels": channels}, {"topic_name": "t", "channels": channels}]
    assert parse_counters({"topics": topics}, "t", "c") == Counters(depth=5, clients=2)
    assert parse_counters({"data": {"topics": topics}}, "t", "c") == Counters(depth=5, clients=2)
    assert parse_counters({"topics": topics}, "t", "nope") is None
    assert parse_counters({"topics": None}, "t", "c") is None
    assert parse_counters({"topics": [{"topic_name": "t", "channels": None}]}, "t", "c") is None


BAD_CHANNEL = {"channel_name": "c", "depth": "x"}


@pytest.mark.parametrize(
    "document",
    [[], "text", 5, {"topics": [5]}, {"topics": [{"topic_name": "t", "channels": [BAD_CHANNEL]}]}],
)
def test_what_is_no_answer_is_an_error(document: Any) -> None:
    with pytest.raises(ConnectionLost):
        parse_counters(document, "t", "c")
