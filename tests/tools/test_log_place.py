"""Places in a log, as people write them."""

from __future__ import annotations

import time

import pytest

from nsquark.errors import UsageError
from nsquark.tools.log_place import EARLIEST, LATEST, Place, parse_place

NOW = 1_793_491_200.5


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", Place(position=0)),
        ("9223372036854775807", Place(position=9223372036854775807)),
        ("10m", Place(time_ns=1_793_490_600_500_000_000)),
        ("1h30m", Place(time_ns=1_793_485_800_500_000_000)),
        ("2d", Place(time_ns=1_793_318_400_500_000_000)),
        ("1d1s", Place(time_ns=1_793_404_799_500_000_000)),
        ("2026-11-01T00:00:00Z", Place(time_ns=1_793_491_200_000_000_000)),
        ("2026-11-01 02:00+02:00", Place(time_ns=1_793_491_200_000_000_000)),
        ("1970-01-01T00:00:00Z", Place(time_ns=0)),
    ],
)
def test_a_place_is_read(text: str, place: Place) -> None:
    assert parse_place(text, NOW) == place


def test_a_time_without_an_offset_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")  # two hours east
    time.tzset()
    try:
        assert parse_place("2026-11-01T02:00", NOW) == Place(time_ns=1_793_491_200_000_000_000)
        assert parse_place("02:00", NOW) == Place(time_ns=1_793_491_200_000_000_000)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-5m", "-1", "10x", "d", "9223372036854775808", "1" * 30, "25:00", "٣"]
)
def test_what_is_no_place_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_place(text, NOW)
    assert repr(text) in str(caught.value)
