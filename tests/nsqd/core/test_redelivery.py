"""The queues of messages that wait, against lists; and what they cost when they are long."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.core.redelivery import DeferredQueue, RequeuedQueue, RequeuedRange
from tests.nsqd.costs import calls


def messages(queue: RequeuedQueue | DeferredQueue) -> list[int]:
    """Every position, in the order in which they come."""
    return [position for each in queue for position in range(each.position, each.position + each.number)]


def holds(queue: RequeuedQueue | DeferredQueue, expected: list[int]) -> None:
    assert messages(queue) == expected
    assert queue.count == len(expected)
    assert bool(queue) == bool(expected)
    assert queue.low == min(expected, default=None)
    found = [
        position
        for each in queue.from_position(0, 1 << 30)
        for position in range(each.position, each.position + each.number)
    ]
    assert found == sorted(expected)


def chunks(draw: random.Random) -> list[tuple[int, int]]:
    """Ranges that do not overlap, in any order: (position, number)."""
    cuts = sorted(draw.sample(range(60), 2 * draw.randint(0, 8)))
    found = [(low, high - low) for low, high in zip(cuts[::2], cuts[1::2], strict=True)]
    draw.shuffle(found)
    return found


def test_what_was_taken_of_an_entry_may_come_back_while_the_rest_waits() -> None:
    queue = RequeuedQueue()
    queue.push(5, 6, 1, 0)
    queue.take(4)
    queue.push(6, 1, 2, 0)
    queue.push(5, 1, 2, 0)
    holds(queue, [9, 10, 6, 5])
    first = queue.from_position(0, 1)
    assert [each.position for each in first + queue.from_position(first[-1].position + 1, 2)] == [5, 6, 9]
    queue.drop(10, 11)
    holds(queue, [9, 6, 5])


def test_what_follows_on_the_last_entry_and_is_like_it_becomes_a_part_of_it() -> None:
    queue = RequeuedQueue()
    queue.push(5, 2, 1, 9)
    queue.push(7, 3, 1, 9)
    assert [(each.position, each.number) for each in queue] == [(5, 5)]
    queue.push(10, 1, 2, 9)  # delivered more often
    queue.push(11, 1, 2, 10)  # has another place
    queue.push(13, 1, 2, 10)  # does not follow
    holds(queue, [5, 6, 7, 8, 9, 10, 11, 13])
    assert [each.number for each in queue] == [5, 1, 1, 1]
    queue.drop(13, 14)
    queue.push(14, 1, 2, 10)  # what it would follow on is gone
    queue.drop(0, 11)
    holds(queue, [11, 14])


def test_what_follows_on_an_entry_with_a_gap_comes_behind_its_rest() -> None:
    queue = RequeuedQueue()
    queue.push(0, 6, 1, 0)
    queue.drop(2, 3)
    queue.push(2, 1, 1, 0)  # follows on the piece before the gap
    queue.push(6, 1, 1, 0)
    holds(queue, [0, 1, 3, 4, 5, 2, 6])


@settings(max_examples=300)
@given(st.integers(0, 2**64).map(random.Random))
def test_what_is_to_come_again_comes_in_the_order_it_was_pushed(draw: random.Random) -> None:
    queue, expected = RequeuedQueue(), []
    for position, number in chunks(draw):
        queue.push(position, number, 1, 0)
        expected += range(position, position + number)
    for _ in range(draw.randint(0, 12)):
        if draw.random() < 0.5 and expected:
            assert queue.first.position == expected[0]
            number = draw.randint(1, queue.first.number)
            queue.take(number)
            del expected[:number]
        else:
            start = draw.randrange(60)
            end = start + draw.randrange(12)
            queue.drop(start, end)
            expected = [each for each in expected if not start <= each < end]
        holds(queue, expected)
    queue.clear()
    holds(queue, [])


@settings(max_examples=300)
@given(st.integers(0, 2**64).map(random.Random))
def test_what_is_deferred_comes_by_its_time(draw: random.Random) -> None:
    queue = DeferredQueue()
    expected: list[tuple[int, int]] = []  # (due, position)
    for position, number in chunks(draw):
        due = draw.randrange(4)
        queue.push(due, position, number, 1)
        expected += [(due, each) for each in range(position, position + number)]
    for _ in range(draw.randint(0, 12)):
        expected.sort()
        if draw.random() < 0.4 and expected:
            first = queue.first
            assert (first.due, first.position) == expected[0]
            assert queue.pop() == first
            del expected[: first.number]
        else:
            start = draw.randrange(60)
            end = start + draw.randrange(12)
            queue.drop(start, end)
            expected = [each for each in expected if not start <= each[1] < end]
        expected.sort()
        holds(queue, [position for _, position in expected])


def filled(kind: type[RequeuedQueue] | type[DeferredQueue], size: int) -> RequeuedQueue | DeferredQueue:
    queue = kind()
    for position in range(size):
        queue.push(
            *(
                (position % 7, 2 * position, 1, 1)
                if isinstance(queue, DeferredQueue)
                else (2 * position, 1, 1, 0)
            )
        )
    return queue


@pytest.mark.parametrize("kind", [RequeuedQueue, DeferredQueue])
@pytest.mark.parametrize(
    "work",
    [
        lambda queue: queue.low,
        lambda queue: queue.drop(500, 520),
        lambda queue: queue.drop(0, 7),
        lambda queue: queue.from_position(500, 10),
        lambda queue: queue.drop(501, 502),
    ],
)
def test_a_long_queue_costs_no_more_than_a_short_one(
    kind: type[RequeuedQueue] | type[DeferredQueue], work: Callable[[RequeuedQueue | DeferredQueue], object]
) -> None:
    short, long = filled(kind, 3_000), filled(kind, 60_000)
    assert calls(lambda: work(long)) <= 2 * calls(lambda: work(short))


def test_what_is_dropped_from_the_middle_does_not_stay_in_memory_for_long() -> None:
    queue = RequeuedQueue()
    queue.push(0, 1, 1, 0)
    for round_ in range(20):
        for position in range(1, 2_001):
            queue.push(position, 1, 1, round_)
        queue.drop(1, 2_001)
    holds(queue, [0])
    assert sum(isinstance(each, RequeuedRange) for each in gc.get_objects()) < 5_000
