"""Merging logs by time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from nsquark.tools.log_reader import LogMessage
from nsquark.tools.nsq_tail.merging import merged


def message(time: int, position: int) -> LogMessage:
    made = LogMessage.__new__(LogMessage)
    made.timestamp_ns, made.position, made.answered = time, position, True
    return made


async def runs(times: list[list[int]]) -> AsyncIterator[list[LogMessage]]:
    position = 0
    for run in times:
        yield [message(time, position + number) for number, time in enumerate(run)]
        position += len(run)


async def merge(logs: dict[str, list[list[int]]]) -> list[tuple[str, int, int]]:
    return [
        (name, each.timestamp_ns, each.position)
        async for run in merged({name: runs(times) for name, times in logs.items()})
        for name, each in run
    ]


async def test_the_oldest_comes_first() -> None:
    found = await merge({"a": [[1, 3], [5]], "b": [[2, 4, 6, 7]], "c": []})
    assert [(name, time) for name, time, _ in found] == [
        ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("b", 6), ("b", 7),
    ]  # fmt: skip


async def test_a_clock_that_was_set_back_holds_nothing_up_and_keeps_the_order_of_its_log() -> None:
    found = await merge({"a": [[10, 1, 2], [3]], "b": [[4], [11]]})
    assert [position for name, _, position in found if name == "a"] == [0, 1, 2, 3]
    assert [name for name, _, _ in found] == ["b", "a", "a", "a", "a", "b"]


_TIMES = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), max_size=4)


@given(st.lists(_TIMES, max_size=4))
async def test_nothing_is_lost_and_each_log_stays_in_order(logs: list[list[list[int]]]) -> None:
    found = await merge({str(number): times for number, times in enumerate(logs)})
    for number, times in enumerate(logs):
        flat = [time for run in times for time in run]
        assert [time for name, time, _ in found if name == str(number)] == flat
    if all(flat == sorted(flat) for flat in ([t for run in times for t in run] for times in logs)):
        assert [time for _, time, _ in found] == sorted(time for _, time, _ in found)
