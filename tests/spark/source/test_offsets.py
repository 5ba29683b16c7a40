"""Offsets: their text, what lies between two of them, and how a limit is shared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.spark.errors import OptionError
from nsquark.spark.source.offsets import Place, Span, between, pack, parse, share
from nsquark.spark.source.partitions import cut

KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))
PLACES = st.builds(Place, st.sampled_from(["e1", "e2"]), st.just("h:4150"), st.integers(0, 50))


@given(st.dictionaries(KEYS, PLACES))
def test_equal_offsets_are_equal_text(places: dict[tuple[str, str], Place]) -> None:
    backwards = dict(reversed(places.items()))
    assert json.dumps(pack(places)) == json.dumps(pack(backwards))
    assert parse(json.loads(json.dumps(pack(places)))) == places


def test_the_text_is_what_the_documentation_says() -> None:
    assert json.dumps(pack({("t", "n"): Place("e", "h:4150", 5)})) == (
        '{"t": {"n": {"epoch": "e", "nsqd": "h:4150", "offset": 5}}}'
    )


@pytest.mark.parametrize("document", [{"sources": 5}, {"t": {"n": 5}}, {"t": {"n": {"offset": 5}}}])
def test_offsets_of_another_source_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="option 'checkpointLocation'"):
        parse(document)


def test_rows_lie_between_places_in_the_same_log() -> None:
    start = {
        ("t", "a"): Place("e", "h:1", 5),
        ("t", "b"): Place("e", "h:2", 5),
        ("t", "c"): Place("e", "h:3", 5),
    }
    end = {
        ("t", "a"): Place("e", "g:1", 9),  # it has moved
        ("t", "b"): Place("f", "h:2", 9),  # it was wiped
        ("t", "c"): Place("e", "h:3", 5),  # nothing new
        ("t", "d"): Place("e", "h:4", 9),  # it is new
    }
    assert between(start, end) == [Span("t", "a", "g:1", "e", 5, 9)]


@given(st.dictionaries(KEYS, st.integers(0, 1000)), st.integers(1, 2000))
def test_a_limit_is_kept_and_used_up(counts: dict[tuple[str, str], int], limit: int) -> None:
    shares = share(counts, limit)
    assert sum(shares.values()) == min(limit, sum(counts.values()))
    assert all(0 <= shares[key] <= counts[key] for key in counts)


def test_a_small_log_is_not_kept_waiting_by_a_large_one() -> None:
    assert share({("t", "a"): 1_000_000, ("t", "b"): 1}, 10) == {("t", "a"): 9, ("t", "b"): 1}


SPANS = st.lists(
    st.builds(
        lambda start, rows: Span("t", "n", "h:1", "e", start, start + rows),
        st.integers(0, 100),
        st.integers(1, 100),
    ),
    min_size=1,
    max_size=5,
)


@given(SPANS, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 50)))
def test_cutting_loses_nothing(spans: list[Span], at_least: int, most: int | None) -> None:
    pieces = cut(spans, at_least, most)
    assert sum(piece.rows for piece in pieces) == sum(span.rows for span in spans)
    assert all(piece.rows > 0 for piece in pieces)
    assert most is None or all(piece.rows <= most for piece in pieces)
    left = iter(pieces)
    for span in spans:  # in order and without gaps
        at = span.start
        while at < span.end:
            piece = next(left)
            assert piece.start == at
            at = piece.end
        assert at == span.end


def test_one_span_is_cut_into_as_many_as_asked_for() -> None:
    pieces = cut([Span("t", "n", "h:1", "e", 10, 20)], 3, None)
    assert [(piece.start, piece.end) for piece in pieces] == [(10, 13), (13, 16), (16, 20)]
    assert len(cut([Span("t", "n", "h:1", "e", 10, 12)], 3, None)) == 2
