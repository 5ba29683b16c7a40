"""Where a channel is to go, out of what a reader types."""

from __future__ import annotations

import pytest

from nsquark.nsqadmin.pages.forms.seeking import parse_place
from nsquark.nsqadmin.pages.site import PageError


@pytest.mark.parametrize(
    ("typed", "to"),
    [
        ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00.000000Z"),
        ("2026-11-01T02:00:00.25+02:00", "2026-11-01T00:00:00.250000Z"),
        (" 2026-11-01 00:00 ", "2026-11-01T00:00:00.000000Z"),
    ],
)
def test_a_time_without_a_zone_is_utc(typed: str, to: str) -> None:
    assert parse_place("at", typed, "").to == to


def test_a_position_needs_its_nsqd() -> None:
    assert parse_place("at", "451000", "127.0.0.1:4151").to == "451000"
    with pytest.raises(PageError, match="one nsqd"):
        parse_place("at", "451000", "")


@pytest.mark.parametrize(
    "typed", ["", "yesterday", "-5", "9" * 30, "²", "2026-99-01", "9999-12-31T23:59:59-12:00x"]
)
def test_what_is_neither_is_refused(typed: str) -> None:
    with pytest.raises(PageError, match="neither a position nor a time"):
        parse_place("at", typed, "127.0.0.1:4151")
