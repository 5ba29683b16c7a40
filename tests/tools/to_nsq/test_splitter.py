"""Cutting at a delimiter, and the throttle, against the plainest way to say the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsquark.tools.to_nsq.splitter import Splitter, Throttle


def split(feeds: list[bytes], max_size: int = 100) -> tuple[list[bytes], bytes, bool]:
    splitter = Splitter(b"\n", max_size)
    pieces: list[bytes] = []
    for data in feeds:
        pieces += splitter.feed(data)
        if splitter.too_long:
            break
    return pieces, splitter.rest(), splitter.too_long


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\x01", b"\n"))))
def test_pieces_do_not_depend_on_how_the_stream_comes(feeds: list[bytes]) -> None:
    *pieces, rest = b"".join(feeds).split(b"\n")
    assert split(feeds, 1000) == (pieces, rest, False)


@given(
    st.lists(st.sampled_from([b"a", b"bb", b"\n", b"cccc", b"d\ne", b"\nfffff\n"])),
    st.integers(min_value=1, max_value=6),
)
def test_a_long_piece_ends_the_stream_behind_all_before_it(feeds: list[bytes], max_size: int) -> None:
    whole = b"".join(feeds).split(b"\n")
    long = next((index for index, piece in enumerate(whole) if len(piece) > max_size), None)
    pieces, _, too_long = split(feeds, max_size)
    assert too_long == (long is not None)
    assert pieces == (whole[:-1] if long is None else whole[:long])


def test_a_piece_without_end_is_not_collected() -> None:
    splitter = Splitter(b"\n", 1000)
    for _ in range(5):
        if splitter.too_long:
            break
        assert splitter.feed(bytes(400)) == []
    assert splitter.too_long
    assert len(splitter.rest()) == 1200


def test_the_throttle_begins_with_one_and_saves_no_more_than_a_second() -> None:
    throttle = Throttle(10, 0.0)
    assert throttle.take(100, 0.0) == 1
    assert throttle.take(100, 0.05) == 0
    assert abs(throttle.wait() - 0.05) < 1e-9
    assert throttle.take(100, 0.1) == 1
    assert throttle.take(100, 0.5) == 4
    assert throttle.take(100, 60.0) == 10
    assert throttle.take(100, 60.0) == 0


def test_without_a_rate_everything_goes_at_once() -> None:
    assert Throttle(0, 0.0).take(12345, 0.0) == 12345
    assert Throttle(-5, 0.0).take(12345, 0.0) == 12345
