import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark import gotext

INT64 = st.integers(gotext.INT64_MIN, gotext.INT64_MAX)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("-7", -7),
        ("0x1F", 31),
        ("0X_1f", 31),
        ("-0x10", -16),
        ("0o17", 15),
        ("0O17", 15),
        ("017", 15),
        ("0_17", 15),
        ("00", 0),
        ("0b101", 5),
        ("0B1_01", 5),
        ("1_000_000", 1000000),
        ("9223372036854775807", gotext.INT64_MAX),
        ("-9223372036854775808", gotext.INT64_MIN),
        ("0x" + "0" * 100 + "1", 1),
    ],
)
def test_integers_are_read_as_go_reads_literals(text: str, value: int) -> None:
    assert gotext.parse_int(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "x",
        "1.0",
        "1e3",
        "08",
        "0x",
        "0b2",
        "0o8",
        "_1",
        "1_",
        "1__0",
        "0x1_",
        " 1",
        "1\n",
        "--1",
        "٣",
        "1,000",
    ],
)
def test_what_is_no_integer_is_a_syntax_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"^strconv\.ParseInt: parsing .*: invalid syntax$"):
        gotext.parse_int(text)


@pytest.mark.parametrize(
    "text", ["9223372036854775808", "-9223372036854775809", "1" + "0" * 5000, "0x" + "f" * 5000]
)
def test_an_integer_beyond_64_bits_is_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"^strconv\.ParseInt: parsing .*: value out of range$"):
        gotext.parse_int(text)


def test_in_base_ten_a_leading_zero_means_nothing_and_prefixes_are_refused() -> None:
    assert gotext.parse_int("010", 10) == 10
    for text in ("0x10", "1_0"):
        with pytest.raises(ValueError, match="invalid syntax"):
            gotext.parse_int(text, 10)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("1e-3", 0.001),
        ("0x1p-2", 0.25),
        ("Inf", math.inf),
        ("-infinity", -math.inf),
    ],
)
def test_floats_are_read(text: str, value: float) -> None:
    assert gotext.parse_float(text) == value


@pytest.mark.parametrize("text", ["", ".", "1_0", " 1", "1 ", "x", "1e", "0x1", "٣", "infi"])
def test_what_is_no_float_is_a_syntax_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"^strconv\.ParseFloat: parsing .*: invalid syntax$"):
        gotext.parse_float(text)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "0x1p9999"])
def test_a_float_too_large_is_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"^strconv\.ParseFloat: parsing .*: value out of range$"):
        gotext.parse_float(text)


def test_booleans_are_twelve_words() -> None:
    assert all(gotext.parse_bool(word) for word in ("1", "t", "T", "TRUE", "true", "True"))
    assert not any(gotext.parse_bool(word) for word in ("0", "f", "F", "FALSE", "false", "False"))
    for word in ("", "yes", "tRUE", "2", " true"):
        with pytest.raises(ValueError, match=r'^strconv\.ParseBool: parsing ".*": invalid syntax$'):
            gotext.parse_bool(word)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("2us", 2_000),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("300ms", 300_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("5.s", 5_000_000_000),
        ("-1s", -1_000_000_000),
        ("+1s", 1_000_000_000),
        ("1s1m1s", 62_000_000_000),
        ("0.1ns", 0),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("000000000000000000000000000000000000000000000000000000000000000000000000001s", 1_000_000_000),
        ("9223372036854775807ns", gotext.INT64_MAX),
        ("-9223372036854775808ns", gotext.INT64_MIN),
        ("2562047h47m16.854775807s", gotext.INT64_MAX),
    ],
)
def test_durations_are_read(text: str, ns: int) -> None:
    assert gotext.parse_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        (".", 'time: invalid duration "."'),
        (".s", 'time: invalid duration ".s"'),
        ("s", 'time: invalid duration "s"'),
        ("--1s", 'time: invalid duration "--1s"'),
        (" 1s", 'time: invalid duration " 1s"'),
        ("60", 'time: missing unit in duration "60"'),
        ("1s5", 'time: missing unit in duration "1s5"'),
        ("1..s", 'time: missing unit in duration "1..s"'),
        ("1s.", 'time: invalid duration "1s."'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1S", 'time: unknown unit "S" in duration "1S"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("1s-2s", 'time: unknown unit "s-" in duration "1s-2s"'),
        ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("9" * 5000 + "s", f'time: invalid duration "{"9" * 5000}s"'),
    ],
)
def test_what_is_no_duration_is_refused_with_gos_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        gotext.parse_duration(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (25_000_000, "25ms"),
        (1_000_000_000, "1s"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
        (-250_000_000, "-250ms"),
        (gotext.INT64_MAX, "2562047h47m16.854775807s"),
    ],
)
def test_durations_are_written(ns: int, text: str) -> None:
    assert gotext.format_duration(ns) == text


@given(INT64)
def test_a_duration_written_reads_the_same(ns: int) -> None:
    assert gotext.parse_duration(gotext.format_duration(ns)) == ns


@given(
    st.integers(-97 * 86400 * 10**9, 97 * 86400 * 10**9)
    | st.integers(-(10**9), 10**9).map(lambda s: s * 10**9)
)
def test_float_seconds_keep_every_nanosecond_of_97_days_and_every_second(ns: int) -> None:
    assert gotext.nanoseconds(gotext.seconds(ns)) == ns


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain äöü ☃", '"plain äöü ☃"'),
        ('a"b\\c', r'"a\"b\\c"'),
        ("\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        ("\x00\x1b\x7f", r'"\x00\x1b\x7f"'),
        ("\u200b\U000e0001", r'"\u200b\U000e0001"'),
        (b"\xff".decode(errors="surrogateescape"), r'"\xff"'),
    ],
)
def test_text_is_quoted_as_go_quotes_it(text: str, quoted: str) -> None:
    assert gotext.quote(text) == quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (5, "5"),
        (0.99, "0.99"),
        (2.0, "2"),
        (-1.0, "-1"),
        (0.0, "0"),
        (1e-05, "1e-05"),
        (999999.5, "999999.5"),
        (1e6, "1e+06"),
        (-1234567.5, "-1.2345675e+06"),
        (1e15, "1e+15"),
        (1e22, "1e+22"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        ("text", "text"),
        (["a", 1, True], "[a 1 true]"),
        ({"b": 1, "a": [2]}, "map[a:[2] b:1]"),
    ],
)
def test_values_are_shown_as_go_shows_them(value: object, text: str) -> None:
    assert gotext.format_value(value) == text


def test_an_os_error_is_told_in_gos_spelling() -> None:
    assert (
        gotext.format_os_error(FileNotFoundError(2, "No such file or directory"))
        == "no such file or directory"
    )
    assert gotext.format_os_error(OSError("odd")) == "odd"


def test_a_pattern_is_gos_and_takes_linear_time() -> None:
    assert gotext.compile_pattern(r"^orders\.\d+$").search("orders.17")
    assert not gotext.compile_pattern(f"^({'a*' * 20})+$").search("a" * 5000 + "b")  # for ever with Python's
    with pytest.raises(ValueError, match="invalid perl operator"):
        gotext.compile_pattern("(?=x)")
