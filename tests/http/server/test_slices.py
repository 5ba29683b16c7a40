"""Long work gives way to other work, and its result is whole all the same."""

import asyncio
import time
from collections.abc import Iterator

from nsquark.http.server.slices import SLICE, joined, slices


def slow(number: int) -> Iterator[str]:
    for index in range(number):
        until = time.perf_counter() + SLICE  # each piece uses up a slice
        while time.perf_counter() <= until:
            pass
        yield str(index)


async def test_other_work_has_its_turn_after_each_slice() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    pieces = [each async for each in slices(slow(5))]
    counting.cancel()
    assert [piece for some in pieces for piece in some] == list("01234")
    assert turns >= 5


async def test_nothing_is_one_empty_list() -> None:
    assert [each async for each in slices([])] == [[]]
    assert await joined([]) == b""


async def test_a_lone_surrogate_is_an_escape() -> None:
    assert await joined(["ü", "\ud800", "!"]) == "ü\\ud800!".encode()
