"""Ranges against a set."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import Ranges

SIZE = 40


def check(ranges: Ranges, model: set[int]) -> None:
    assert bool(ranges) == bool(model)
    assert ranges.count == len(model)
    pairs = list(iter(ranges))
    assert {each for start, end in pairs for each in range(start, end)} == model
    # sorted, not empty, and with gaps between
    bounds = [bound for pair in pairs for bound in pair]
    assert bounds == sorted(set(bounds))
    for position in range(SIZE + 5):
        assert (position in ranges) == (position in model)
        assert ranges.count_from(position) == sum(each >= position for each in model)
        for length in (1, 2, 5):
            found = any(each in model for each in range(position, position + length))
            assert ranges.overlaps(position, position + length) == found
        assert ranges.first_behind(position) == next((pair for pair in pairs if pair[1] > position), None)
        gap = position
        while gap in model:
            gap += 1
        assert ranges.next_gap(position) == gap
        for end in (position, position + 3, position + 20):
            between = {each for low, high in ranges.gaps(position, end) for each in range(low, high)}
            assert between == set(range(position, end)) - model
        if position not in model:
            assert ranges.next_start(position) == min(
                (each for each in model if each >= position), default=None
            )


@settings(max_examples=300)
@given(st.integers(0, 2**64).map(random.Random))
def test_ranges_are_a_set_of_positions(draw: random.Random) -> None:
    ranges, model = Ranges(), set[int]()
    for _ in range(draw.randint(0, 12)):
        start = draw.randrange(SIZE)
        match draw.randrange(8):
            case 0:
                ranges.drop_below(start)
                model = {each for each in model if each >= start}
            case 1:
                ranges.drop_from(start)
                model = {each for each in model if each < start}
            case _:
                end = start + draw.choice([0, 1, 1, 2, 10, -1])
                ranges.add(start, end)
                model |= set(range(start, end))
        check(ranges, model)


def test_positions_in_order_make_one_range() -> None:
    ranges = Ranges()
    for position in range(1000):
        ranges.add(position, position + 1)
    assert list(ranges) == [(0, 1000)]


def test_a_range_swallows_what_it_covers_and_touches() -> None:
    ranges = Ranges()
    for start in range(0, 100, 10):
        ranges.add(start, start + 5)
    ranges.add(15, 40)
    assert list(ranges) == [(0, 5), (10, 45), *[(start, start + 5) for start in range(50, 100, 10)]]
    ranges.add(0, 1 << 60)
    assert list(iter(ranges)) == [(0, 1 << 60)]


def test_it_may_change_while_it_is_walked() -> None:
    ranges = Ranges()
    ranges.add(0, 1)
    ranges.add(5, 6)
    for start, end in ranges:
        ranges.add(start + 10, end + 10)
    assert list(ranges) == [(0, 1), (5, 6), (10, 11), (15, 16)]


def test_a_million_holes_are_passed_without_moving_them_each_time() -> None:
    """The lists are shortened when most of them is gone, not with every range that is."""

    class Counted(list[int]):
        moved = 0

        def __delitem__(self, key: object) -> None:
            Counted.moved += len(self)
            super().__delitem__(key)  # type: ignore[arg-type]

    ranges, size = Ranges(), 20_000
    for position in range(0, 2 * size, 2):
        ranges.add(position, position + 1)
    ranges._starts, ranges._ends = Counted(ranges._starts), Counted(ranges._ends)
    for position in range(0, 2 * size, 2):
        ranges.drop_below(position + 1)
        assert ranges.count == ranges.count_from(position) == size - position // 2 - 1
    assert not ranges
    assert Counted.moved < 10 * size


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.booleans()), max_size=250))
def test_what_is_forgotten_at_the_front_stays_forgotten(steps: list[tuple[int, int, bool]]) -> None:
    ranges, model, floor = Ranges(), set[int](), 0
    for start, length, drop in [*((2 * n, 1, False) for n in range(150)), *steps]:
        if drop:
            floor += length
            ranges.drop_below(floor)
            model = {each for each in model if each >= floor}
        else:
            ranges.add(start, start + length)
            model |= set(range(start, start + length))
        assert ranges.count == len(model)
        assert bool(ranges) == bool(model)
        assert {each for low, high in ranges for each in range(low, high)} == model
        assert (floor in ranges) == (floor in model)
        assert ranges.count_from(floor + 3) == sum(each >= floor + 3 for each in model)
        gap = ranges.next_gap(floor)
        assert gap not in model
        assert all(each in model for each in range(floor, gap))
