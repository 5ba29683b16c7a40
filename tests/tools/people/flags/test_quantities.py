"""Numbers for people."""

from __future__ import annotations

import pytest

from nsquark.errors import UsageError
from nsquark.tools.people.flags import quantities


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (0.25, "0.2"), (9.94, "9.9"), (10.4, "10"), (9999, "9999"), (10_000, "10.0k"),
        (99_940, "99.9k"), (999_400, "999k"), (1_000_000, "1.0M"), (2.5e9, "2.5G"), (3e12, "3.0T"),
    ],
)  # fmt: skip
def test_a_short_number_fits_six_columns(number: float, text: str) -> None:
    assert quantities.short(number) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0ms"), (0.35, "350ms"), (0.9999, "1s"), (59.4, "59s"), (61, "1m01s"), (599, "9m59s"),
        (600, "10m"), (3600, "1h00m"), (86399, "23h"), (86400 * 12, "12d"),
    ],
)  # fmt: skip
def test_an_age_fits_six_columns(seconds: float, text: str) -> None:
    assert quantities.age(seconds) == text
    assert len(text) <= 6


def test_sizes() -> None:
    assert [quantities.size(n) for n in (0, 999, 1000, 99_500, 1_500_000, 10**16)] == [
        "0 B", "999 B", "1.0 KB", "100 KB", "1.5 MB", "10000 TB",
    ]  # fmt: skip
    assert [quantities.parse_size(text) for text in ("200", "4k", "1M", "2g")] == [
        200,
        4096,
        1 << 20,
        2 << 30,
    ]
    for text in ("", "k", "-1", "1.5k", "1x", "9" * 20):
        with pytest.raises(UsageError, match="size"):
            quantities.parse_size(text)


def test_durations() -> None:
    assert [quantities.parse_seconds(text) for text in ("250ms", "10s", "1m30s", "2", "0.5")] == [
        0.25, 10.0, 90.0, 2.0, 0.5,
    ]  # fmt: skip
    for text in ("", "soon", "-1s", "1e3", "."):
        with pytest.raises(UsageError):
            quantities.parse_seconds(text)


def test_a_body_cannot_move_the_cursor() -> None:
    assert quantities.body_text(b"a\x1b[2Jb\r\n\xff\xe2\x82\xac") == r"a\x1b[2Jb\r\n\xff€"


def test_how_much_to_keep() -> None:
    day = 86400 * 10**9
    for text, told in (
        ("7d", f"{7 * day}ns"),
        ("36h", f"{day * 3 // 2}ns"),
        ("0", "0ns"),
        ("default", "default"),
    ):
        assert quantities.parse_kept_time(text) == told
    for text, told in (("20g", str(20 << 30)), ("0", "0"), ("unlimited", "unlimited")):
        assert quantities.parse_kept_size(text) == told
    for text in ("soon", "d", "-1d", "1.5d", "²d", ""):
        with pytest.raises(UsageError, match=r"length of time|negative"):
            quantities.parse_kept_time(text)
    with pytest.raises(UsageError, match="no size"):
        quantities.parse_kept_size("many")
    assert [quantities.kept_time(ns) for ns in (-1, 0, day)] == ["without limit", "not at all", "for 24h0m0s"]
    assert [quantities.kept_size(n) for n in (-1, 0, 5000)] == ["without limit", "not at all", "up to 5.0 KB"]
