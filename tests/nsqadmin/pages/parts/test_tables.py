"""Sorting, filtering and paging of long lists."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from nsquark.nsqadmin.pages.parts.tables import PER_PAGE, Page, page_of

ROWS = [(f"topic{number:03}", number % 7) for number in range(120)]


def page(query: str) -> Page[tuple[str, int]]:
    columns = {"name": lambda row: row[0], "depth": lambda row: row[1]}
    return page_of(ROWS, QueryParams(query), columns, lambda row: row[0])


def test_equal_rows_are_sorted_by_name() -> None:
    rows = page("sort=-depth").rows
    assert [row[1] for row in rows[:17]] == [6] * 17
    assert [row[0] for row in rows[:3]] == ["topic006", "topic013", "topic020"]


def test_a_page_has_its_share() -> None:
    last = page("page=3")
    assert (last.first, last.last, last.total, last.pages) == (101, 120, 120, 3)
    assert len(page("").rows) == PER_PAGE


@pytest.mark.parametrize("query", ["page=99", "page=0", "page=-1", "page=x", "page=²", "page=" + "9" * 5000])
def test_a_page_that_is_not_there_is_another_one(query: str) -> None:
    assert 1 <= page(query).number <= 3


def test_a_column_that_is_not_there_is_the_default() -> None:
    assert page("sort=__class__").sort == "name"


def test_the_filter_ignores_case() -> None:
    assert [row[0] for row in page("q=TOPIC11").rows] == [f"topic11{digit}" for digit in range(10)]


def test_nothing_found_is_an_empty_page() -> None:
    empty = page("q=nothing")
    assert (empty.total, empty.first, empty.last, empty.pages) == (0, 0, 0, 1)


def test_a_click_on_a_head_turns_the_order_round() -> None:
    sorted_down = page("sort=-depth")
    assert sorted_down.next_sort("depth", text=False) == "depth"
    assert sorted_down.next_sort("name", text=True) == "name"
    assert sorted_down.sorted_by("depth") == "descending"
    assert sorted_down.sorted_by("name") is None
