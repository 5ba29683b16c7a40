"""One timer of the loop for many objects, by a clock that stands still until it is told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.core.timers import NEVER, Timers

MS = 1_000_000


class Handle:
    def __init__(self, when: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop that has a clock and call_later, and nothing else."""

    def __init__(self, late: int = 0) -> None:
        self.now = 1_000 * MS
        self.handles: list[Handle] = []
        self.calls = 0
        self._late = late

    def clock(self) -> int:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        assert delay >= 0
        self.calls += 1
        handle = Handle(self.now + round(delay * 1e9) + self._late, callback)
        self.handles.append(handle)
        return handle

    @property
    def armed(self) -> list[Handle]:
        return [handle for handle in self.handles if not handle.cancelled]

    def pass_time(self, ns: int) -> None:
        """Let the time go by, and fire what falls due on the way."""
        until = self.now + ns
        while due := [handle for handle in self.armed if handle.when <= until]:
            handle = min(due, key=lambda each: each.when)
            self.handles.remove(handle)
            self.now = max(self.now, handle.when)
            handle.callback()
        self.now = until


class Sleeper:
    def __init__(self) -> None:
        self.wakes_at = NEVER
        self.woken: list[int] = []
        self.then: Callable[[int], None] = lambda now: None

    def wake(self, now: int) -> None:
        assert self.wakes_at == NEVER
        self.woken.append(now)
        self.then(now)


def made(late: int = 0) -> tuple[Loop, Timers]:
    loop = Loop(late)
    return loop, Timers(cast(Any, loop), loop.clock)


def test_it_wakes_once_at_its_time() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    timers.schedule(sleeper, loop.now + 5 * MS)
    assert sleeper.wakes_at == loop.now + 5 * MS
    loop.pass_time(5 * MS - 1)
    assert sleeper.woken == []
    loop.pass_time(1)
    assert sleeper.woken == [1_005 * MS]
    loop.pass_time(1_000 * MS)
    assert len(sleeper.woken) == 1
    assert loop.armed == []


def test_the_earliest_time_counts() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    for when in (50, 20, 30, 20):
        timers.schedule(sleeper, loop.now + when * MS)
    loop.pass_time(1_000 * MS)
    assert sleeper.woken == [1_020 * MS]


def test_a_time_that_has_passed_comes_at_once_and_not_in_the_call() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    timers.schedule(sleeper, loop.now - 5 * MS)
    assert sleeper.woken == []
    loop.pass_time(0)
    assert sleeper.woken == [1_000 * MS]


def test_who_is_cancelled_sleeps_on_and_may_be_scheduled_again() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    timers.schedule(sleeper, loop.now + 5 * MS)
    timers.cancel(sleeper)
    loop.pass_time(10 * MS)
    assert sleeper.woken == []
    timers.schedule(sleeper, loop.now + 5 * MS)
    timers.cancel(sleeper)
    timers.schedule(sleeper, loop.now + 5 * MS)  # the same time again: still once
    loop.pass_time(10 * MS)
    assert len(sleeper.woken) == 1


def test_who_is_woken_may_schedule_itself_and_others() -> None:
    loop, timers = made()
    beating, other = Sleeper(), Sleeper()

    def beat(now: int) -> None:
        timers.schedule(beating, now + 10 * MS)
        timers.schedule(other, now)

    beating.then = beat
    timers.schedule(beating, loop.now + 10 * MS)
    loop.pass_time(35 * MS)
    assert beating.woken == [1_010 * MS, 1_020 * MS, 1_030 * MS]
    assert other.woken == beating.woken


def test_many_objects_have_one_timer() -> None:
    loop, timers = made()
    sleepers = [Sleeper() for _ in range(1000)]
    for number, sleeper in enumerate(sleepers):
        timers.schedule(sleeper, loop.now + (1 + number) * MS)
        assert len(loop.armed) == 1
    assert loop.calls == 1
    loop.pass_time(5_000 * MS)
    assert [sleeper.woken for sleeper in sleepers] == [[(1_001 + number) * MS] for number in range(1000)]


def test_a_timer_that_fires_early_is_set_again() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    timers.schedule(sleeper, loop.now + 10 * MS)
    [handle] = loop.armed
    handle.when -= 3 * MS  # the loop's clock is not this one
    loop.pass_time(7 * MS)
    assert sleeper.woken == []
    loop.pass_time(3 * MS)
    assert sleeper.woken == [1_010 * MS]


def test_closed_timers_wake_nobody() -> None:
    loop, timers = made()
    sleeper = Sleeper()
    timers.schedule(sleeper, loop.now + 10 * MS)
    timers.close()
    assert loop.armed == []
    loop.pass_time(100 * MS)
    assert sleeper.woken == []


@settings(max_examples=200)
@given(st.integers(0, 2**64).map(random.Random))
def test_nobody_is_woken_early_or_forgotten(draw: random.Random) -> None:
    late = draw.choice([0, 0, 3 * MS])
    loop, timers = made(late)
    sleepers = [Sleeper() for _ in range(draw.randint(1, 5))]
    for _ in range(draw.randint(1, 40)):
        sleeper = draw.choice(sleepers)
        match draw.randrange(6):
            case 0:
                timers.cancel(sleeper)
            case 1 | 2:
                before = {each: (each.wakes_at, len(each.woken)) for each in sleepers}
                loop.pass_time(draw.choice([0, 1, MS, 20 * MS]))
                for each, (wakes_at, woken) in before.items():
                    # a timer is set no finer than 200 µs, and the loop may be late
                    if wakes_at + late + 200_000 < loop.now:
                        assert len(each.woken) == woken + 1
                    if wakes_at > loop.now:
                        assert len(each.woken) == woken
            case _:
                before_it = sleeper.wakes_at
                when = loop.now + draw.randrange(-MS, 30 * MS)
                timers.schedule(sleeper, when)
                assert sleeper.wakes_at == min(before_it, when)
    assert len(loop.armed) <= 1
    loop.pass_time(100 * MS)
    assert all(sleeper.wakes_at == NEVER for sleeper in sleepers)
