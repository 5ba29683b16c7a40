from __future__ import annotations

from datetime import UTC, datetime

from nsquark.pipeline.output.compaction import choose, is_over


def test_few_files_are_left_alone() -> None:
    assert choose({"a": 1, "b": 1}, 3, 100) == []
    assert choose({"a": 1}, 1, 100) == []
    assert choose({}, 2, 100) == []


def test_large_files_stay() -> None:
    assert choose({"a": 1, "b": 100, "c": 2, "d": 500}, 2, 100) == ["a", "c"]


def test_no_more_is_merged_than_makes_a_large_file() -> None:
    assert choose({"a": 50, "b": 50, "c": 50, "d": 50}, 2, 100) == ["a", "b"]


def test_a_file_that_outweighs_the_rest_waits_for_more() -> None:
    assert choose({"merged": 90, "a": 10, "b": 10, "c": 10}, 2, 1000) == ["a", "b", "c"]
    assert choose({"merged": 25, "a": 10, "b": 10, "c": 10}, 2, 1000) == ["a", "b", "c", "merged"]


def test_copies_grow_with_the_logarithm() -> None:
    sizes: dict[str, int] = {}
    copied = 0
    for number in range(1000):
        sizes[f"new{number}"] = 1
        while chosen := choose(sizes, 8, 10**9):
            total = sum(sizes.pop(name) for name in chosen)
            sizes[f"merged{number}"] = total
            copied += total
    assert len(sizes) < 20
    assert copied < 1000 * 10


def test_an_hour_or_day_is_over_when_late_messages_have_come_too() -> None:
    folder = "topic=t/date=2024-05-01/hour=12"
    assert not is_over(folder, datetime(2024, 5, 1, 13, 5, tzinfo=UTC))
    assert is_over(folder, datetime(2024, 5, 1, 13, 10, tzinfo=UTC))
    assert not is_over("date=2024-05-01", datetime(2024, 5, 2, 0, 5, tzinfo=UTC))
    assert is_over("date=2024-05-01", datetime(2024, 5, 2, 0, 10, tzinfo=UTC))
    assert not is_over("elsewhere", datetime(2024, 5, 1, 13, 10, tzinfo=UTC))
