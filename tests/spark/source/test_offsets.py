"""Offsets: their text, and the rows between two of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.spark.errors import OptionError
from nsquark.spark.source.offsets import LogPosition, Span, pack_offset, parse_offset, spans_between

KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))
POSITIONS = st.builds(LogPosition, st.sampled_from(["e1", "e2"]), st.just("h:4150"), st.integers(0, 50))


@given(st.dictionaries(KEYS, POSITIONS))
def test_equal_offsets_are_equal_text(offset: dict[tuple[str, str], LogPosition]) -> None:
    backwards = dict(reversed(offset.items()))
    assert json.dumps(pack_offset(offset)) == json.dumps(pack_offset(backwards))
    assert parse_offset(json.loads(json.dumps(pack_offset(offset)))) == offset


def test_the_text_is_what_the_documentation_says() -> None:
    assert json.dumps(pack_offset({("t", "n"): LogPosition("e", "h:4150", 5)})) == (
        '{"t": {"n": {"epoch": "e", "nsqd": "h:4150", "offset": 5}}}'
    )


@pytest.mark.parametrize("document", [{"sources": 5}, {"t": {"n": 5}}, {"t": {"n": {"offset": 5}}}])
def test_offsets_of_another_source_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="option 'checkpointLocation'"):
        parse_offset(document)


def test_rows_lie_between_positions_in_the_same_log() -> None:
    start = {
        ("t", "a"): LogPosition("e", "h:1", 5),
        ("t", "b"): LogPosition("e", "h:2", 5),
        ("t", "c"): LogPosition("e", "h:3", 5),
    }
    end = {
        ("t", "a"): LogPosition("e", "g:1", 9),  # it has moved
        ("t", "b"): LogPosition("f", "h:2", 9),  # it was wiped
        ("t", "c"): LogPosition("e", "h:3", 5),  # nothing new
        ("t", "d"): LogPosition("e", "h:4", 9),  # it is new
    }
    assert spans_between(start, end) == [Span("t", "a", "g:1", "e", 5, 9)]
