"""The queues of messages that wait, against lists; and what they cost when they are long."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.nsqd.core import redelivery
from nsquark.nsqd.core.redelivery import DeferredQueue, RequeuedQueue, RequeuedRange
from tests.nsqd.costs import calls

LONG = 1_700_000_000_000_000_000


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
            assert queue.next_due == expected[0][0]
            first = queue.pop()
            assert (first.due, first.position) == expected[0]
            del expected[: first.number]
        else:
            start = draw.randrange(60)
            end = start + draw.randrange(12)
            queue.drop(start, end)
            expected = [each for each in expected if not start <= each[1] < end]
        expected.sort()
        holds(queue, [position for _, position in expected])


@settings(max_examples=100)
@given(st.integers(0, 2**64).map(random.Random))
def test_many_deferred_ranges_are_kept_in_both_orders(draw: random.Random) -> None:
    queue, expected = DeferredQueue(), dict[int, tuple[int, int, int]]()  # position: (due, end, attempts)
    with patch.object(redelivery, "BLOCK_ENTRIES", 4), patch.object(redelivery, "MANY_DROPPED", 3):
        free = draw.sample(range(200), 200)
        for _ in range(draw.randrange(120)):
            if free and (draw.random() < 0.6 or not expected):
                position = free.pop()
                due, number, attempts = draw.randrange(-2, 9), draw.randrange(1, 9), draw.randrange(3)
                queue.push(due, 10 * position, number, attempts)
                expected[10 * position] = due, 10 * position + number, attempts
            elif draw.random() < 0.5 and expected:
                first = queue.pop()
                assert (first.due, first.position) == min((due, at) for at, (due, *_) in expected.items())
                assert expected.pop(first.position) == (
                    first.due, first.position + first.number, first.attempts,
                )  # fmt: skip
                if draw.random() < 0.5:  # requeued for the same time
                    queue.push(*first)
                    expected[first.position] = first.due, first.position + first.number, first.attempts
            else:
                start = draw.randrange(2000)
                stop = start + draw.choice([1, 5, 30, 2000])
                queue.drop(start, stop)
                for at, (due, end, attempts) in list(expected.items()):
                    if start < end and at < stop:
                        del expected[at]
                        for low, high in ((at, min(end, start)), (max(at, stop), end)):
                            if low < high:
                                expected[low] = due, high, attempts
            there = [(due, at, end - at, attempts) for at, (due, end, attempts) in expected.items()]
            assert list(queue) == sorted(there)
            by_position = sorted(there, key=lambda each: each[1])
            assert list(queue.by_position()) == by_position
            at = draw.randrange(2000)
            assert queue.from_position(at, 3) == [each for each in by_position if each[1] >= at][:3]
            assert queue.count == sum(each[2] for each in there)
            assert queue.low == (by_position[0][1] if there else None)
            assert bool(queue) == bool(there)
            if there:
                assert queue.next_due == min(there)[0]


def test_keys_of_what_was_dropped_do_not_stay_in_memory_for_long() -> None:
    queue = DeferredQueue()
    queue.push(0, 0, 1, 0)
    tracemalloc.start()
    try:
        for round_ in range(20):
            for position in range(1, 5_001):
                queue.push(round_, position, 1, 0)
            queue.drop(1, 5_001)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000
    holds(queue, [0])


def test_a_deferred_message_takes_less_than_a_hundred_bytes() -> None:
    queue = DeferredQueue()
    tracemalloc.start()
    try:
        for position in range(20_000):
            queue.push(LONG + 1000 * position, LONG + position, 1, 0)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100 * 20_000


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
