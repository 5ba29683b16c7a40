"""The sampler asks while a page is open, once for all pages, and not for long afterwards."""

from __future__ import annotations

import asyncio

import pytest

from nsquark.nsqadmin.history import History, Observation, Sampler
from tests.daemon import until


class Asked:
    """A cluster that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0
        self.answer = asyncio.Event()
        self.answer.set()
        self.fails = False

    async def take(self) -> int:
        self.times += 1
        number = self.times
        await self.answer.wait()
        if self.fails:
            raise OSError("nobody answers")
        return number

    def sampler(self, interval: float = 0.01, linger: float = 60.0) -> Sampler[int]:
        return Sampler(self.take, self.read, History(), interval, linger)

    async def read(self, number: int) -> Observation:
        return Observation({}, {})


async def test_readers_that_come_together_share_one_answer() -> None:
    asked = Asked()
    asked.answer.clear()
    sampler = asked.sampler(interval=60.0)
    waiting = [asyncio.ensure_future(sampler.snapshot()) for _ in range(10)]
    await until(lambda: asked.times)
    asked.answer.set()
    assert await asyncio.gather(*waiting) == [1] * 10
    assert await sampler.snapshot() == 1
    await sampler.stop()


async def test_a_reader_that_goes_away_leaves_the_answer_to_the_others() -> None:
    asked = Asked()
    asked.answer.clear()
    sampler = asked.sampler(interval=60.0)
    first, second = (asyncio.ensure_future(sampler.snapshot()) for _ in range(2))
    await until(lambda: asked.times)
    first.cancel()
    asked.answer.set()
    assert await second == 1
    await sampler.stop()


async def test_after_a_change_the_cluster_is_asked_anew() -> None:
    asked = Asked()
    sampler = asked.sampler(interval=60.0)
    assert await sampler.snapshot() == 1
    sampler.expire()
    assert await sampler.snapshot() == 2
    await sampler.stop()


async def test_an_answer_that_was_asked_for_before_the_change_is_not_taken_for_a_new_one() -> None:
    asked = Asked()
    asked.answer.clear()
    sampler = asked.sampler(interval=60.0)
    before = asyncio.ensure_future(sampler.snapshot())
    await until(lambda: asked.times == 1)
    sampler.expire()
    after = asyncio.ensure_future(sampler.snapshot())
    await until(lambda: asked.times == 2)
    asked.answer.set()
    assert (await before, await after) == (1, 2)
    await sampler.stop()


async def test_it_stops_when_nobody_looks_any_more() -> None:
    asked = Asked()
    sampler = asked.sampler(linger=0.4)
    await sampler.snapshot()
    await until(lambda: not sampler.sampling)
    times = asked.times
    assert times > 1
    sampler.look()
    await until(lambda: asked.times > times)
    await sampler.stop()


async def test_a_cluster_that_fails_is_asked_again() -> None:
    asked = Asked()
    asked.fails = True
    sampler = asked.sampler()
    with pytest.raises(OSError, match="nobody answers"):
        await sampler.snapshot()
    await until(lambda: asked.times > 2)
    asked.fails = False
    await until(lambda: sampler.sampling)
    assert await sampler.snapshot(max_age=0) > 2
    await sampler.stop()
