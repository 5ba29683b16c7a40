"""The JSON flags: the specification's table, row by row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.tools.nsq_to_nsq.json_filter import Dropped, JsonFilter, MissingField

PASS, DROP, FAIL = "pass", "drop", "fail"


def outcome(body: bytes, field: str = "", value: str = "", *whitelist: str) -> str | bytes:
    """PASS if the body passes as it is, or the body that is left."""
    try:
        left = JsonFilter(field, value, whitelist).apply(body)
    except Dropped:
        return DROP
    except MissingField:
        return FAIL
    return PASS if left is body else left


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", b"[1]", b'"text"', b"1", b"true", b'{"a":1', b"NaN", b'{"a":Infinity}', b"[" * 99_999],
)
def test_what_is_no_object_is_dropped_with_a_reason_that_has_no_body(body: bytes) -> None:
    with pytest.raises(Dropped, match="Unable to decode json") as caught:
        JsonFilter("a", "", ()).apply(body)
    assert body == b"" or body.decode() not in caught.value.reason


@pytest.mark.parametrize(
    ("body", "value", "expected"),
    [
        (b"null", "", DROP),
        (b"{}", "", DROP),
        (b'{"b":1}', "", DROP),
        (b"null", "1", FAIL),
        (b'{"b":1}', "1", FAIL),
        (b'{"a":1}', "", PASS),
        (b'{"a":null}', "", PASS),
        (b' {"a" : "x"}\n', "x", PASS),
        (b'{"a":"x"}', "y", DROP),
        (b'{"a":"1.0"}', "1", DROP),
        (b'{"a":"1"}', "1", PASS),
        (b'{"a":1}', "1", PASS),
        (b'{"a":1.0}', "1", PASS),
        (b'{"a":1}', "1.0", PASS),
        (b'{"a":1e2}', "100", PASS),
        (b'{"a":1}', "1e0", PASS),
        (b'{"a":2}', "1", DROP),
        (b'{"a":1}', "x", DROP),
        (b'{"a":0.1}', "0.1", PASS),
        (b'{"a":9007199254740993}', "9007199254740993", PASS),
        (b'{"a":9007199254740993}', "9007199254740992", DROP),  # as floats they would be equal
        (b'{"a":true}', "1", DROP),
        (b'{"a":true}', "true", DROP),
        (b'{"a":null}', "null", DROP),
        (b'{"a":[1]}', "1", DROP),
        (b'{"a":{}}', "1", DROP),
        (b'{"a":1e999}', "1", DROP),
    ],
)
def test_a_required_field(body: bytes, value: str, expected: str) -> None:
    assert outcome(body, "a", value) == expected


def test_a_value_without_a_field_is_ignored() -> None:
    assert not JsonFilter("", "1", ()).active
    assert outcome(b'{"b":1}', "", "1", "b") == b'{"b":1}'


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"b": 1, "a": [1, {"d": 2, "c": null}], "x": 0}', b'{"a":[1,{"c":null,"d":2}],"b":1}'),
        (b'{"x":1}', b"{}"),
        (b"null", b"{}"),
        (b'{"a":1.0,"b":1.5}', b'{"a":1,"b":1.5}'),
        (b'{"a":9007199254740993}', b'{"a":9007199254740993}'),
        (b'{"a":123456789012345678901234567890}', b'{"a":123456789012345678901234567890}'),
        (b'{"a":1e30,"b":1e20}', b'{"a":1e+30,"b":100000000000000000000}'),
        (b'{"a":0.000001,"b":0.0000001}', b'{"a":0.000001,"b":1e-7}'),
        (b'{"a":-1.25e-9,"b":-0.0}', b'{"a":-1.25e-9,"b":-0}'),
        (b'{"a":1e400}', b'{"a":1e400}'),
        (b'{"a":"<b>&"}', b'{"a":"\\u003cb\\u003e\\u0026"}'),
        ('{"a":"é\u2028\u2029\\n\\u0001"}'.encode(), '{"a":"é\\u2028\\u2029\\n\\u0001"}'.encode()),
        (b'{"a":"\xff"}', '{"a":"\ufffd"}'.encode()),
        (b'{"a":"\\ud800"}', '{"a":"\ufffd"}'.encode()),
        (b'{"a":true,"b":false}', b'{"a":true,"b":false}'),
        (b'{"a":%b}' % (b"7" * 5000), b'{"a":%b}' % (b"7" * 5000)),
    ],
)
def test_a_whitelist_writes_the_object_as_go_does(body: bytes, left: bytes) -> None:
    assert outcome(body, "", "", "b", "a") == left


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_written_shortest_and_reads_back_the_same(value: float) -> None:
    written = outcome(b'{"a":%b}' % repr(value).encode(), "", "", "a")
    assert isinstance(written, bytes)
    text = written.removeprefix(b'{"a":').removesuffix(b"}").decode()
    assert float(text) == value
    assert ("e" in text) == (value != 0 and not 1e-6 <= abs(value) < 1e21)


def test_field_and_whitelist_together() -> None:
    assert outcome(b'{"a":1,"b":2}', "a", "1", "b") == b'{"b":2}'
    assert outcome(b'{"a":2,"b":2}', "a", "1", "b") == DROP
