"""Query strings as Go's net/url reads them."""

from __future__ import annotations

import pytest

from nsquark.http.query import parse_query, unescape


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (b"", {}),
        (b"topic=a", {"topic": "a"}),
        (b"topic=a&channel=b", {"topic": "a", "channel": "b"}),
        (b"topic=first&topic=second", {"topic": "first"}),
        (b"topic=&topic=second", {"topic": ""}),
        (b"&&topic=a&", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"=a", {"": "a"}),
        (b"topic=a=b", {"topic": "a=b"}),
        (b"topic=a%23ephemeral", {"topic": "a#ephemeral"}),
        (b"topic=a#ephemeral", {"topic": "a#ephemeral"}),
        (b"to%70ic=a+b%2Bc", {"topic": "a b+c"}),
        (b"topic=%C3%A4", {"topic": "ä"}),
        (b"topic=%ff", {"topic": "\ufffd"}),
        (b"topic=%25zz", {"topic": "%zz"}),
        (b"topic=a%3Bb", {"topic": "a;b"}),
    ],
)
def test_values_are_the_first_of_each_name(query: bytes, values: dict[str, str]) -> None:
    assert parse_query(query) == values


@pytest.mark.parametrize(
    "query", [b"a;b", b"topic=a;channel=b", b"topic=%", b"topic=%z", b"topic=%zz", b"%4=a", b"topic=a&x=%0"]
)
def test_what_go_does_not_parse_is_none(query: bytes) -> None:
    assert parse_query(query) is None


def test_a_plus_in_a_path_stays_a_plus() -> None:
    assert unescape(b"/a+b%20c") == "/a+b c"
    assert unescape(b"/a%2") is None
