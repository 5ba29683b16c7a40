"""The backoff automaton, without timers."""

from __future__ import annotations

import pytest

from nsquark.client.backoff import BackoffState, Exponential, FullJitter, Signal, Step
from nsquark.errors import UsageError

SUCCESS, FAILURE, NEUTRAL = Signal.SUCCESS, Signal.FAILURE, Signal.NEUTRAL


def at_level(level: int) -> BackoffState:
    state = BackoffState(Exponential())
    for _ in range(level):
        state.signal(FAILURE)
        state.pause_over()
    return state


@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("level", [1, 3])
def test_during_a_pause_nothing_counts(level: int, signal: Signal) -> None:
    state = at_level(level - 1)
    assert state.signal(FAILURE) is Step.PAUSE
    assert state.signal(signal) is Step.NOTHING
    assert (state.level, state.paused) == (level, True)


@pytest.mark.parametrize(
    ("level", "signal", "step", "then"),
    [
        (0, SUCCESS, Step.NOTHING, 0),
        (0, NEUTRAL, Step.NOTHING, 0),
        (0, FAILURE, Step.PAUSE, 1),
        (1, FAILURE, Step.PAUSE, 2),
        (1, NEUTRAL, Step.PAUSE, 1),
        (1, SUCCESS, Step.RESUME, 0),
        (4, SUCCESS, Step.PAUSE, 3),
    ],
)
def test_the_table(level: int, signal: Signal, step: Step, then: int) -> None:
    state = at_level(level)
    assert state.signal(signal) is step
    assert state.level == then
    assert state.paused is (step is Step.PAUSE)


def test_pauses_double_up_to_the_cap_and_the_level_stays_there() -> None:
    state = BackoffState(Exponential())
    pauses = []
    for _ in range(10):
        state.signal(FAILURE)
        pauses.append(state.pause)
        state.pause_over()
    assert pauses == [2, 4, 8, 16, 32, 64, 120, 120, 120, 120]
    assert state.level == 7


@pytest.mark.parametrize("strategy", [None, Exponential(cap=0)])
def test_it_can_be_turned_off(strategy: Exponential | None) -> None:
    state = BackoffState(strategy)
    assert state.signal(FAILURE) is Step.NOTHING
    assert state.level == 0


def test_full_jitter_lies_below_the_exponential() -> None:
    strategy = FullJitter(multiplier=0.5)
    pauses = [strategy.pause(3) for _ in range(200)]
    assert all(0 <= pause < 4 for pause in pauses)
    assert max(pauses) - min(pauses) > 1


def test_full_jitter_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="backoff_multiplier 0"):
        FullJitter(multiplier=0)


def test_a_huge_level_does_not_overflow() -> None:
    assert Exponential(multiplier=1e-9, cap=3600).longest(10_000) > 0
