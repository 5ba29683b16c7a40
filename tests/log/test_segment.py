"""One file of a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.log import Segment
from nsquark.log.recovery import Survey
from tests.log.contents import Batch, small_reads, split_batches


def written(path: Path, base: int = 0, batches: int = 20, due: int = 0) -> tuple[Segment, list[Batch]]:
    """A segment with batches of 1, 2 and 3 messages in turn, as a log would have written it."""
    segment = Segment(path, base)
    writer = kernel.BatchWriter(base, 100)
    with open(segment.path, "wb") as file:
        for number in range(batches):
            position = writer.position
            writer.add_bodies([b"x" * 20] * (number % 3 + 1), 1, due if number % 4 == 3 else 0)
            data = writer.take()
            file.write(data)
            segment.add(position, number % 3 + 1, len(data))
    return segment, split_batches(segment.path.read_bytes())


def opened(path: Path, base: int = 0) -> Segment:
    """The same file as another process finds it, not yet looked into."""
    segment = Segment(path, base)
    segment.size = os.stat(segment.path).st_size
    segment.end, segment.verified = 1 << 40, False
    return segment


def recovered(path: Path, base: int = 0) -> tuple[Segment, Survey]:
    """The newest file, as a start takes it up."""
    segment = opened(path, base)
    found = segment.inspect()
    return segment.piece(found.pieces[0]), found


def test_a_segment_is_named_by_its_first_position(tmp_path: Path) -> None:
    assert Segment(tmp_path, 42).path == tmp_path / "00000000000000000042.log"
    assert Segment(tmp_path, 2**64 - 1).path.name == "18446744073709551615.log"


def test_it_knows_what_was_written(tmp_path: Path) -> None:
    segment, batches = written(tmp_path, base=7)
    assert segment.base == 7
    assert segment.end == 7 + sum(len(batch.frames) for batch in batches)
    assert segment.size == segment.path.stat().st_size
    segment.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("stride", [1, 200, 65536])
def test_the_index_leads_near_every_position(tmp_path: Path, again: bool, stride: int) -> None:
    with small_reads(250, stride):
        segment, batches = written(tmp_path, base=5, due=99)
        if again:
            end, segment = segment.end, opened(tmp_path, 5)
            segment.end = end
        offsets = {batch.offset for batch in batches}
        for batch in batches:
            for position in range(batch.position, batch.position + len(batch.frames)):
                offset = segment.offset_near(position)
                assert offset in offsets
                assert offset <= batch.offset
                assert batch.offset - offset <= max(0, stride)
    segment.close()


@given(
    stride=st.integers(1, 300),
    beginning=st.sampled_from([0, 0, 500]),
    sizes=st.lists(st.integers(1, 200), max_size=20),
)
def test_a_file_is_marked_once_a_stride(stride: int, beginning: int, sizes: list[int]) -> None:
    with small_reads(250, stride):
        segment = Segment(Path(), 7)
    segment.size = beginning  # written by an earlier process, if it is not 0, and not walked yet
    for number, size in enumerate(sizes):
        segment.add(7 + 2 * number, 2, size)
    assert (segment.size, segment.end) == (beginning + sum(sizes), 7 + 2 * len(sizes))
    if beginning:
        assert (segment.marks, segment.marked_to) == ([], 0)
        return
    marks: list[tuple[int, int]] = []
    offset = 0
    for number, size in enumerate(sizes):
        if not marks or offset - marks[-1][1] >= stride:
            marks.append((7 + 2 * number, offset))
        offset += size
    assert (segment.marks, segment.marked_to) == (marks, offset)


def test_the_index_goes_on_where_it_was_read(tmp_path: Path) -> None:
    with small_reads(250, 1):
        written(tmp_path)[0].close()
        segment, found = recovered(tmp_path)
        assert found.deferred == []
        before = segment.size
        writer = kernel.BatchWriter(segment.end, 1000)
        writer.add_bodies([b"more"], 1, 0)
        data = writer.take()
        with open(segment.path, "ab") as file:
            file.write(data)
        segment.add(segment.end, 1, len(data))
        assert segment.offset_near(segment.end - 1) == before
    segment.close()


def test_reading_ends_at_what_is_committed(tmp_path: Path) -> None:
    segment, _ = written(tmp_path)
    whole = segment.path.read_bytes()
    with open(segment.path, "ab") as file:
        file.write(b"half a batch that is being written")
    assert segment.read(0, 1 << 20) == whole
    assert segment.read(10, 20) == whole[10:30]
    assert segment.read(len(whole) - 3, 20) == whole[-3:]
    assert segment.read(len(whole), 20) == b""
    segment.close()


def test_it_is_opened_for_reading_when_first_needed_and_after_closing(tmp_path: Path) -> None:
    segment, _ = written(tmp_path)
    first = segment.read(0, 48)
    segment.close()
    segment.close()
    assert segment.read(0, 48) == first
    segment.close()


def test_recovery_finds_the_end_and_the_deferred_batches(tmp_path: Path) -> None:
    _, batches = written(tmp_path, base=3, due=99)
    segment, found = recovered(tmp_path, 3)
    assert segment.end == batches[-1].position + len(batches[-1].frames)
    assert [(batch[3], batch[2], batch[6]) for batch in found.deferred] == [
        (batch.position, len(batch.frames), 99) for batch in batches if batch.due
    ]
    segment.close()


@pytest.mark.parametrize("torn", [1, 47, 48, 49, 80])
def test_what_is_torn_is_not_whole(tmp_path: Path, torn: int) -> None:
    segment, batches = written(tmp_path)
    segment.close()
    os.truncate(segment.path, batches[-1].offset + torn)
    segment, found = recovered(tmp_path)
    assert segment.size == found.whole == batches[-1].offset
    assert segment.path.stat().st_size == batches[-1].offset + torn
    assert segment.end == batches[-1].position
    assert found.damages == []


def test_recovery_of_nothing(tmp_path: Path) -> None:
    for base, content in ((0, b""), (9, b"\0" * 500), (11, b"NQB1")):
        Segment(tmp_path, base).path.write_bytes(content)
        found = opened(tmp_path, base).inspect()
        assert (found.pieces, found.damages, found.whole, found.end) == ([], [], 0, base)


def test_a_deleted_segment_is_gone(tmp_path: Path) -> None:
    segment, _ = written(tmp_path)
    segment.read(0, 10)
    segment.delete()
    assert list(tmp_path.iterdir()) == []
    segment.delete()  # twice is no mistake
