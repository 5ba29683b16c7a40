"""Chores run in slices, once at a time, and a failure ends only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from nsquark.nsqd.core.chores import SLICE, Chores


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def turn() -> None:
    await asyncio.sleep(0)


async def test_a_chore_stops_at_the_end_of_its_slice_and_goes_on_in_the_next_turn() -> None:
    clock, done = Time(), []

    def steps() -> Iterator[None]:
        for number in range(6):
            done.append(number)
            clock.now += SLICE / 2
            yield

    chores = Chores(asyncio.get_running_loop(), clock)
    chores.start("count", steps)
    assert done == [0, 1]
    await turn()
    assert done == [0, 1, 2, 3]
    await turn()
    assert done == [0, 1, 2, 3, 4, 5]


async def test_a_chore_that_is_under_way_does_not_begin_again() -> None:
    clock, begun = Time(), []

    def steps() -> Iterator[None]:
        begun.append(clock.now)
        clock.now += 2 * SLICE
        yield

    chores = Chores(asyncio.get_running_loop(), clock)
    chores.start("once", steps)
    chores.start("once", steps)
    chores.start("another", steps)
    assert len(begun) == 2
    await turn()
    chores.start("once", steps)
    assert len(begun) == 3


async def test_a_chore_that_fails_is_logged_and_may_begin_again(caplog: pytest.LogCaptureFixture) -> None:
    def steps() -> Iterator[None]:
        yield
        raise OSError("the disk is gone")

    chores = Chores(asyncio.get_running_loop())
    for _ in range(2):
        chores.start("trimming", steps)
    assert [record.getMessage() for record in caplog.records] == ["trimming failed"] * 2


async def test_chores_that_are_closed_do_not_go_on() -> None:
    clock, done = Time(), []

    def steps() -> Iterator[None]:
        for number in range(3):
            done.append(number)
            clock.now += 2 * SLICE
            yield

    chores = Chores(asyncio.get_running_loop(), clock)
    chores.start("count", steps)
    chores.close()
    await turn()
    assert done == [0]
