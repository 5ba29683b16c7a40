"""Rates out of counts, and that memory is bounded."""

from __future__ import annotations

import pytest

from nsquark.nsqadmin.history import CLUSTER, History, Observation, Reading
from nsquark.nsqadmin.history.history import FORGET_AFTER
from nsquark.nsqadmin.history.series import POINTS

ORDERS = ("topic", "orders")


def seen(messages: int, depth: int = 0, nodes: dict[str, int] | None = None) -> Observation:
    """One topic, on nodes that are told with the time of their start, each with its share of the messages."""
    nodes = {"a:4151": 100} if nodes is None else nodes
    readings = {ORDERS: Reading(messages, depth), CLUSTER: Reading(messages, depth)}
    readings |= {("node", node): Reading(messages // len(nodes), depth) for node in nodes}
    return Observation(nodes, readings)


def test_a_rate_is_what_a_count_has_grown_by_in_a_second() -> None:
    history = History()
    history.observe(1000.0, seen(50))
    assert history.rate(ORDERS) is None
    history.observe(1005.0, seen(150))
    assert history.rate(ORDERS) == 20.0
    chart = history.chart(ORDERS)
    assert chart is not None
    assert (chart.times, chart.rate) == ([1000.0, 1005.0], [None, 20.0])


def test_a_count_that_fell_is_no_rate() -> None:
    history = History()
    history.observe(1000.0, seen(500))
    history.observe(1005.0, seen(10))
    assert history.rate(ORDERS) is None
    history.observe(1010.0, seen(60))
    assert history.rate(ORDERS) == 10.0


def test_a_node_that_comes_back_with_its_count_makes_no_peak() -> None:
    history = History()
    both = {"a:4151": 100, "b:4151": 100}
    history.observe(1000.0, seen(2000, nodes=both))
    history.observe(1005.0, seen(1005, nodes={"a:4151": 100}))
    history.observe(1010.0, seen(2020, nodes=both))
    assert history.rate(ORDERS) is None
    # Node a went from 1005 to 1010 meanwhile; of node b nothing is known.
    assert history.rate(("node", "b:4151")) is None
    assert history.rate(CLUSTER) == history.rate(("node", "a:4151")) == 1.0


def test_a_mean_over_a_long_pause_is_not_shown_as_a_rate() -> None:
    history = History()
    history.observe(1000.0, seen(0))
    history.observe(5000.0, seen(4000))
    assert history.rate(ORDERS) is None


def test_the_oldest_observations_make_room() -> None:
    history = History()
    for number in range(POINTS + 10):
        history.observe(1000.0 + number, seen(number, depth=number))
    chart = history.chart(ORDERS)
    assert chart is not None
    assert chart.times[0] == 1011.0
    assert chart.depth == [float(number) for number in range(11, POINTS + 10)]


def test_what_is_gone_has_gaps_and_is_then_forgotten() -> None:
    history = History()
    history.observe(1000.0, seen(1, depth=7))
    empty = Observation({"a:4151": 100}, {})
    history.observe(1001.0, empty)
    chart = history.chart(ORDERS)
    assert chart is not None
    assert chart.depth == [7.0, None]
    for number in range(FORGET_AFTER + 1):
        history.observe(1002.0 + number, empty)
    assert history.chart(ORDERS) is None
    assert len(history) == 0


def test_there_are_only_so_many_series_and_channels_come_last() -> None:
    history = History(max_series=10)
    readings = {("channel", "orders", f"c{number}"): Reading(0, 0) for number in range(100)}
    readings |= {("topic", f"t{number}"): Reading(0, 0) for number in range(8)}
    for now, messages in ((1000.0, 0), (1001.0, 5)):
        history.observe(now, Observation({}, {key: Reading(messages, 0) for key in readings}))
    assert len(history) == 10
    assert all(history.chart(("topic", f"t{number}")) for number in range(8))
    # Of what has no series, the present rate is known all the same.
    assert history.chart(("channel", "orders", "c99")) is None
    assert history.rate(("channel", "orders", "c99")) == 5.0


@pytest.mark.parametrize("now", [1000.0, 900.0])
def test_a_clock_that_stands_or_goes_back_gives_no_rate(now: float) -> None:
    history = History()
    history.observe(1000.0, seen(0))
    history.observe(now, seen(100))
    assert history.rate(ORDERS) is None


def test_readers_see_an_observation_when_it_is_whole() -> None:
    history = History()
    key = ("topic", "orders")
    for number in range(POINTS + 2):
        history.observe(1000.0 + number, Observation({}, {key: Reading(number, number)}))
    before = history.chart(key)
    for _ in history.observing(2000.0, Observation({}, {key: Reading(7, 7)})):
        assert history.chart(key) == before
    after = history.chart(key)
    assert after is not None
    assert after.depth[-1] == 7
