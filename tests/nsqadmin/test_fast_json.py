"""The two ways to JSON agree, and what one refuses the other takes."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.nsqadmin.fast_json import pack_json, parse_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_packed_is_parsed_as_it_was(value: object) -> None:
    packed = pack_json(value)
    assert parse_json(packed) == json.loads(packed) == value


def test_there_are_no_spaces_and_no_escapes_without_need() -> None:
    assert pack_json({"a": [1, "ü"], "b": None}) == '{"a":[1,"ü"],"b":null}'.encode()


def test_half_a_surrogate_pair_is_borne_both_ways() -> None:
    assert parse_json(b'{"hostname":"\\ud800"}') == {"hostname": "\ud800"}
    assert json.loads(pack_json({"hostname": "\ud800"})) == {"hostname": "\ud800"}


def test_a_sum_of_more_than_64_bits_is_told() -> None:
    assert pack_json({"depth": 1 << 65}) == b'{"depth":36893488147419103232}'


def test_a_number_that_is_none_is_borne() -> None:
    assert math.isnan(parse_json(b"[NaN]")[0])


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nonsense", b"[" * 100_000])
def test_what_is_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_json(data)
