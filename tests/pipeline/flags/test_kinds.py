from __future__ import annotations

import pytest

from nsquark.pipeline.flags.kinds import AVAILABLE_NOW, PAIRS, TIME, TRIGGER


@pytest.mark.parametrize(
    ("text", "value"),
    [("10s", 10.0), ("0s", 0.0), ("1m30s", 90.0), ("once", AVAILABLE_NOW), ("available-now", AVAILABLE_NOW)],
)
def test_a_trigger_is_an_interval_or_once(text: str, value: object) -> None:
    assert TRIGGER.parse(text, None) == value
    assert TRIGGER.coerce(text) == value


@pytest.mark.parametrize("text", ["", "ten", "-1s", "10"])
def test_anything_else_is_no_trigger(text: str) -> None:
    with pytest.raises(ValueError, match="neither a duration such as 10s, nor once"):
        TRIGGER.parse(text, None)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1714564800000", 1714564800000),
        ("2024-05-01T12:00:00Z", 1714564800000),
        ("2024-05-01T14:00:00+02:00", 1714564800000),
        ("2024-05-01 12:00", 1714564800000),
        ("2024-05-01", 1714521600000),
    ],
)
def test_a_time_is_written_in_many_ways(text: str, ms: int) -> None:
    assert TIME.parse(text, None) == ms


def test_a_time_that_is_none_says_how_to_write_one() -> None:
    with pytest.raises(ValueError, match="2024-05-01T12:00:00Z"):
        TIME.parse("yesterday", None)


def test_pairs_add_up_and_keep_later_equal_signs() -> None:
    pairs = PAIRS.parse("a.b=c=d", PAIRS.parse("x=", None))
    assert pairs == {"x": "", "a.b": "c=d"}
    assert PAIRS.coerce(["a=1", "b=2"]) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("text", ["a", "=b"])
def test_what_has_no_name_is_no_pair(text: str) -> None:
    with pytest.raises(ValueError, match="not name=value"):
        PAIRS.parse(text, None)
