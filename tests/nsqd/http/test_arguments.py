"""Numbers and places in a URL."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.http import HttpError
from nsquark.nsqd.http.arguments import MAX_POSITION, Place, number, parse_place

SECOND = 1_000_000_000


class Asked:
    """A request, as far as its query goes."""

    def __init__(self, **query: str) -> None:
        self.query = query


def asked(**query: str) -> Any:
    return Asked(**query)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), (str(MAX_POSITION), MAX_POSITION)])
def test_a_number_is_decimal_digits(text: str, value: int) -> None:
    assert number(asked(n=text), "n", 5) == value
    assert number(asked(), "n", 5) == 5


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", "٣", str(MAX_POSITION + 1), "9" * 100])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(HttpError, match="INVALID_ARG_N"):
        number(asked(n=text), "n", 5)


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ({}, None),
        ({"to": "earliest"}, Place(word="earliest")),
        ({"to": "17"}, Place(17)),
        ({"timestamp_ms": "1500"}, Place(time=1_500_000_000)),
        ({"to": "1970-01-01T00:00:01Z"}, Place(time=SECOND)),
        ({"to": "1970-01-01T00:00:01"}, Place(time=SECOND)),
        ({"to": "1970-01-01T01:00:01+01:00"}, Place(time=SECOND)),
        ({"to": "1970-01-01T01:00:01 01:00"}, Place(time=SECOND)),  # a plus that was not escaped
        ({"to": "1960-01-01"}, Place(time=0)),
    ],
)
def test_a_place_is_a_word_a_position_or_a_time(query: dict[str, str], place: Place | None) -> None:
    assert parse_place(asked(**query), "to") == place


@pytest.mark.parametrize(
    "query", [{"to": "soon"}, {"to": ""}, {"to": "1", "timestamp_ms": "1"}, {"to": "-1"}]
)
def test_what_is_no_place(query: dict[str, str]) -> None:
    with pytest.raises(HttpError, match="INVALID_ARG_TO"):
        parse_place(asked(**query), "to")
