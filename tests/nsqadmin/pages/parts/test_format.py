"""Numbers, times and bodies as people read them."""

from __future__ import annotations

import base64

import pytest

from nsquark.nsqadmin.pages.parts import format as shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9999, "9,999"), (12345, "12.3k"), (1234567, "1.23M"), (2.5e9, "2.5G"), (None, "–")],
)
def test_figures_stay_narrow(value: float | None, text: str) -> None:
    assert shown.short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0015, "1.5 ms"),
        (59.0, "59 s"),
        (60.0, "1m 0s"),
        (3723.0, "1h 2m"),
        (90000.0, "1d 1h"),
        (-3.0, "0 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert shown.duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.99, "p99"), (0.999, "p99.9"), (0.5, "p50")])
def test_percentiles_are_told_apart(value: float, text: str) -> None:
    assert shown.percentile(value) == text


def test_json_is_indented() -> None:
    assert shown.body_text({"body": '{"id":1}'}) == ('{\n  "id": 1\n}', "json")


def test_what_only_begins_like_json_is_text() -> None:
    assert shown.body_text({"body": "{not json"}) == ("{not json", "text")


def test_nesting_that_is_too_deep_is_text() -> None:
    assert shown.body_text({"body": "[" * 100_000})[1] == "text"


def test_bytes_are_a_hex_dump() -> None:
    dump, kind = shown.body_text({"body_base64": base64.b64encode(bytes(range(250, 256)) + b"abc").decode()})
    assert kind == "hex"
    assert dump.startswith("00000000  fa fb fc fd fe ff 61 62  63")
    assert dump.endswith("......abc")


def test_control_characters_are_bytes_too() -> None:
    assert shown.body_text({"body": "\x00\x01"})[1] == "hex"


def test_of_a_large_body_the_beginning_is_shown() -> None:
    text, _ = shown.body_text({"body": "x" * (shown.MAX_SHOWN + 5)})
    assert text.endswith("… 5 more characters")


def test_a_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert shown.moment(10**30) == f"{10**30} ns"
