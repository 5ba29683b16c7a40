"""Spans cut into partitions: nothing is lost, and the pieces are as many and as large as asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsquark.spark.source.offsets import Span
from nsquark.spark.source.partitions import count_pieces, cut_range, cut_spans

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
    pieces = cut_spans(spans, at_least, most)
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
    pieces = cut_spans([Span("t", "n", "h:1", "e", 10, 20)], 3, None)
    assert [(piece.start, piece.end) for piece in pieces] == [(10, 13), (13, 16), (16, 20)]
    assert len(cut_spans([Span("t", "n", "h:1", "e", 10, 12)], 3, None)) == 2


def test_a_range_is_cut_into_ranges_of_about_the_same_size() -> None:
    assert list(cut_range(10, 20, 3)) == [(10, 13), (13, 16), (16, 20)]
    assert count_pieces([100, 10], 11, None) == [10, 1]
    assert count_pieces([10], 1, 4) == [3]
