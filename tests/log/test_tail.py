"""The newest batches of a log in memory: found by position, and no more of them than the bounds allow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nsquark.log import Ranges, Segment
from nsquark.log.tail import Tail

FILE = Segment(Path(), 0)
COMMITS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 60)), max_size=20)  # messages, bytes


@given(COMMITS, st.integers(0, 20), st.integers(0, 300))
def test_a_tail_with_a_file_stays_within_its_bounds(
    commits: list[tuple[int, int]], max_messages: int, max_bytes: int
) -> None:
    tail, end = Tail(max_messages, max_bytes), 5
    for count, size in commits:
        before = list(tail.chunks)
        tail.add(end, end + count, bytes(size), FILE, 100)
        end += count
        chunks = tail.chunks
        newest = chunks[-1]
        assert (newest.position, newest.end, len(newest.data)) == (end - count, end, size)
        assert (newest.segment, newest.offset) == (FILE, 100)
        assert chunks == [*before, newest][-len(chunks) :]
        assert tail.size == sum(len(chunk.data) for chunk in chunks)
        if len(chunks) > 1:
            assert tail.size <= max_bytes
            assert end - chunks[0].end <= max_messages  # the oldest chunk may reach beyond the bound
        if len(chunks) <= len(before):
            # It goes down to three quarters at once, and no further than it has to.
            before.append(newest)
            last_gone = before[-len(chunks) - 1]
            kept = sum(len(chunk.data) for chunk in before[-len(chunks) - 1 :])
            messages = max_messages - max_messages // 4
            assert kept > max_bytes * 3 // 4 or last_gone.end + messages <= end


@given(COMMITS, st.integers(0, 80))
def test_a_position_is_found_in_its_chunk(commits: list[tuple[int, int]], position: int) -> None:
    tail, end = Tail(0, 0), 5
    for number, (count, size) in enumerate(commits):
        if number % 3 != 2:  # there are gaps
            tail.add(end, end + count, bytes(size), None, 0)
        end += count
    expected = [chunk for chunk in tail.chunks if chunk.position <= position < chunk.end]
    assert tail.find(position) is (expected[0] if expected else None)
    run = tail.find_run(position)
    assert run[:1] == expected
    if run:
        at = tail.chunks.index(run[0])
        assert run == tail.chunks[at : at + len(run)]
        assert all(one.end == other.position for one, other in pairwise(run))
        behind = tail.chunks[at + len(run) :]
        assert not behind or behind[0].position > run[-1].end


def test_a_tail_without_a_file_forgets_only_what_is_not_needed() -> None:
    tail = Tail(1, 10)
    for number in range(200):
        assert tail.overgrown == (number > 64 or 5 * number > 10)
        tail.add(2 * number, 2 * number + 2, b"12345", None, 0)
    needed = Ranges()
    needed.add(3, 5)
    needed.add(399, 1000)
    tail.keep(needed)
    assert [chunk.position for chunk in tail.chunks] == [2, 4, 398]
    assert (tail.size, tail.overgrown) == (15, False)
    tail.clear()
    assert (tail.chunks, tail.size, tail.find(2)) == ([], 0, None)
