"""Percentiles of one node, and of several merged."""

from __future__ import annotations

import pytest

from nsquark.nsqadmin.cluster.latency import Latency, parse_latency


def measured(count: int, **quantiles: float) -> Latency:
    percentiles = [{"quantile": float(f"0.{name[1:]}"), "value": value} for name, value in quantiles.items()]
    return parse_latency({"count": count, "percentiles": percentiles})


def test_a_node_s_value_is_its_minimum_maximum_and_average() -> None:
    assert measured(4, q99=38548812).to_json() == {
        "count": 4,
        "percentiles": [
            {
                "average": 38548812,
                "count": 4,
                "max": 38548812,
                "min": 38548812,
                "quantile": 0.99,
                "value": 38548812,
            }
        ],
        "topic": "",
        "channel": "",
        "host": "",
    }


def test_two_nodes_are_weighted_by_their_counts() -> None:
    merged = Latency(topic="orders", channel="archive", host="*")
    merged.add(measured(4, q99=38548812))
    merged.add(measured(2, q99=18894926))
    told = merged.to_json()
    [percentile] = told.pop("percentiles")
    assert told == {"count": 6, "topic": "orders", "channel": "archive", "host": "*"}
    assert percentile.pop("average") == pytest.approx(31997516.666666668)
    assert percentile == {"count": 6, "max": 38548812, "min": 18894926, "quantile": 0.99}


def test_the_minimum_is_the_least_and_not_the_last() -> None:
    merged = Latency()
    merged.add(measured(1, q99=5))
    merged.add(measured(1, q99=9))
    assert merged.percentiles is not None
    assert (merged.percentiles[0].min, merged.percentiles[0].max) == (5, 9)


def test_quantiles_that_only_one_node_measures_are_kept() -> None:
    merged = Latency()
    merged.add(measured(1, q99=5))
    merged.add(measured(3, q5=2, q99=9))
    assert merged.percentiles is not None
    assert [(each.quantile, each.count) for each in merged.percentiles] == [(0.99, 4), (0.5, 3)]


def test_without_messages_the_average_is_zero() -> None:
    merged = Latency()
    merged.add(measured(0, q99=0))
    merged.add(measured(0, q99=0))
    assert merged.percentiles is not None
    assert merged.percentiles[0].average == 0


def test_merging_leaves_the_records_of_nodes_alone() -> None:
    first, merged = measured(4, q99=10), Latency()
    merged.add(first)
    merged.add(measured(4, q99=30))
    assert first == measured(4, q99=10)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "x",
        {},
        {"count": None, "percentiles": None},
        {"count": "1", "percentiles": {}},
        {"percentiles": [None, 3]},
        {"count": float("nan"), "percentiles": [{"quantile": "a", "value": None}]},
    ],
)
def test_an_odd_report_is_borne(odd: object) -> None:
    latency = parse_latency(odd)
    assert latency.count == 0
    latency.add(latency)
