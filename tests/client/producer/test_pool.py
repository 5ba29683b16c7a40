"""Choosing among nsqds, with a clock that the test sets."""

from __future__ import annotations

import random

import pytest

from nsquark.client.producer.pool import EpsilonGreedy, HostPool, Pool, RoundRobin, make_pool
from nsquark.errors import UsageError


def picks(pool: Pool, count: int, now: float = 0.0) -> list[int]:
    return [pool.pick(now).host for _ in range(count)]


def test_round_robin_begins_with_the_second() -> None:
    assert picks(RoundRobin(3), 5) == [1, 2, 0, 1, 2]
    assert picks(RoundRobin(1), 2) == [0, 0]


def test_a_hostpool_goes_round() -> None:
    assert picks(HostPool(3), 5) == [0, 1, 2, 0, 1]


def test_a_hostpool_leaves_out_who_failed_for_30_seconds_then_60() -> None:
    pool = HostPool(2)
    pool.pick(0.0).mark(False, 0.0)  # host 0
    assert picks(pool, 3, 30.0) == [1, 1, 1]
    picked = pool.pick(30.1)
    assert picked.host == 0
    picked.mark(False, 30.1)  # dead already: its next try was set by the pick
    assert picks(pool, 3, 90.0) == [1, 1, 1]
    again = pool.pick(90.2)
    assert again.host == 0
    again.mark(True, 90.2)
    assert sorted(picks(pool, 2, 90.3)) == [0, 1]


def test_the_delay_of_a_hostpool_has_an_end() -> None:
    pool = HostPool(2)
    pool.pick(0.0).mark(False, 0.0)
    now = 0.0
    waits = []
    for _ in range(8):
        step = 0.0
        while pool.pick(now + step).host != 0:
            step += 1.0
        waits.append(step)
        now += step
    assert waits[:3] == [31.0, 61.0, 121.0]
    assert waits[-1] == 901.0


def test_when_all_are_dead_all_are_tried() -> None:
    pool = HostPool(3)
    for _ in range(3):
        pool.pick(0.0).mark(False, 0.0)
    assert picks(pool, 4, 1.0) == [0, 0, 1, 2]


def test_a_lease_counts_once() -> None:
    pool = HostPool(2)
    picked = pool.pick(0.0)
    picked.mark(True, 0.0)
    picked.mark(False, 0.0)
    assert sorted(picks(pool, 2, 0.0)) == [0, 1]


def test_epsilon_greedy_prefers_the_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsquark.client.producer.pool.random", random.Random(1))
    pool = EpsilonGreedy(2)
    now, counts = 0.0, [0, 0]
    for _ in range(2000):
        picked = pool.pick(now)
        counts[picked.host] += 1
        picked.mark(True, now + (0.0002 if picked.host == 0 else 0.002))  # less than a millisecond counts too
        now += 0.01
    assert counts[0] > 5 * counts[1]
    assert counts[1] > 20


def test_epsilon_greedy_forgets_after_five_minutes() -> None:
    pool = EpsilonGreedy(2)
    pool.pick(0.0).mark(True, 0.1)
    assert pool._times[0].average(299.0) > 0
    assert pool._times[0].average(301.0) == 0


def test_epsilon_greedy_does_not_pick_the_dead() -> None:
    pool = EpsilonGreedy(2)
    for _ in range(2):
        pool.pick(0.0).mark(True, 0.001)
    while (picked := pool.pick(0.0)).host != 0:
        pass
    picked.mark(False, 0.0)
    assert set(picks(pool, 50, 1.0)) == {1}


def test_modes_have_names() -> None:
    assert make_pool("all", 2) is None
    assert isinstance(make_pool("epsilon-greedy", 2), EpsilonGreedy)
    with pytest.raises(UsageError, match="none of all, group, round-robin, hostpool"):
        make_pool("best", 2)  # type: ignore[arg-type]
