"""Sorting, filtering and paging of long lists, by the query of a page: `sort=-depth&q=orders&page=2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.datastructures import QueryParams

PER_PAGE = 50
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    total: int  # that match, on all pages
    number: int  # from 1
    pages: int
    sort: str
    query: str
    per_page: int = PER_PAGE

    @property
    def first(self) -> int:
        return (self.number - 1) * self.per_page + 1 if self.total else 0

    @property
    def last(self) -> int:
        return min(self.number * self.per_page, self.total)

    def sorted_by(self, column: str) -> str | None:
        """`aria-sort` of a column's head."""
        if self.sort.lstrip("-") != column:
            return None
        return "descending" if self.sort.startswith("-") else "ascending"

    def next_sort(self, column: str, text: bool) -> str:
        """What a click on a column's head asks for: the other way round, or what most people want first."""
        if self.sort.lstrip("-") == column:
            return column if self.sort.startswith("-") else f"-{column}"
        return column if text else f"-{column}"


def page_of(
    rows: Sequence[Row],
    asked: QueryParams,
    columns: Mapping[str, Callable[[Row], Any]],
    name: Callable[[Row], str],
    default: str = "name",
    per_page: int = PER_PAGE,
) -> Page[Row]:
    """The part of `rows` that a page shows. For what is not there, the default stands in."""
    query = asked.get("q", "").strip()
    if query:
        wanted = query.casefold()
        rows = [row for row in rows if wanted in name(row).casefold()]
    sort = asked.get("sort", default)
    if sort.lstrip("-") not in columns:
        sort = default
    ordered = sorted(rows, key=name)
    ordered.sort(key=columns[sort.lstrip("-")], reverse=sort.startswith("-"))
    pages = max(1, -(-len(ordered) // per_page))
    number = asked.get("page", "1")
    number_now = min(max(int(number), 1), pages) if number.isdecimal() and len(number) < 9 else 1
    begin = (number_now - 1) * per_page
    return Page(ordered[begin : begin + per_page], len(ordered), number_now, pages, sort, query, per_page)
