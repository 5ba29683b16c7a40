"""When it pays to stay awake for the next request: clients of several kinds, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsquark.nsqd.protocol.lingering import Lingering

MICROSECOND = 1000
Pace = Callable[[bool], int]
"""From whether the loop stayed awake to the microseconds from one request to the next."""


def waits(awake: bool) -> int:
    """A client that waits for each answer."""
    return 22 if awake else 50


def has_a_pace(awake: bool) -> int:
    """20,000 messages a second, however late the answers are."""
    return 50


def is_far_away(awake: bool) -> int:
    """A client that waits for each answer, which takes its time on the network."""
    return 85 if awake else 95


def seldom(awake: bool) -> int:
    return 1000


@pytest.fixture
def lingering() -> Lingering:
    return Lingering()


def share_awake(lingering: Lingering, pace: Pace, requests: int = 10_000, now: int = 1) -> float:
    """The share of the requests before which the loop stayed awake."""
    awake = 0
    for _ in range(requests):
        lingering.came(now, 1)
        awake += lingering.awake
        now += pace(lingering.awake) * MICROSECOND
    return awake / requests


def test_a_client_that_waits_for_its_answers_is_waited_for(lingering: Lingering) -> None:
    assert share_awake(lingering, waits) > 0.95


@pytest.mark.parametrize("pace", [has_a_pace, is_far_away])
def test_where_nothing_is_gained_it_is_seldom_tried(lingering: Lingering, pace: Pace) -> None:
    assert 0 < share_awake(lingering, pace, 100_000) < 0.01


def test_requests_that_are_far_apart_are_never_waited_for(lingering: Lingering) -> None:
    assert share_awake(lingering, seldom) == 0


def test_a_client_that_turns_to_a_pace_of_its_own_is_not_waited_for_any_more(lingering: Lingering) -> None:
    share_awake(lingering, waits, 10_000)
    # Faster than what was gained: only the comparison with sleeping tells.
    share_awake(lingering, lambda awake: 30, 2_000, 10**9)
    assert share_awake(lingering, lambda awake: 30, 100_000, 2 * 10**9) < 0.02


def test_a_client_that_begins_to_wait_for_its_answers_is_found(lingering: Lingering) -> None:
    share_awake(lingering, has_a_pace, 100_000)
    share_awake(lingering, waits, 5_000, 10**10)
    assert share_awake(lingering, waits, 10_000, 2 * 10**10) > 0.95


def test_a_pause_now_and_then_changes_nothing(lingering: Lingering) -> None:
    numbers = iter(range(10_000))
    assert share_awake(lingering, lambda awake: 2000 if next(numbers) % 50 == 49 else waits(awake)) > 0.8


def test_nobody_is_waited_for_while_several_have_something(lingering: Lingering) -> None:
    share_awake(lingering, waits)
    assert lingering.last
    lingering.came(10**9, 2)
    assert not lingering.last
    now = 2 * 10**9
    for ready in [1, 3] * 1000:
        lingering.came(now, ready)
        now += 10 * MICROSECOND
    assert not lingering.last


def test_a_time_between_others_is_not_counted() -> None:
    lingering = Lingering()
    now = 1
    for ready in [1, 2] * 1000:  # a request that others were behind tells nothing
        lingering.came(now, ready)
        now += 10 * MICROSECOND
    assert not lingering.awake
