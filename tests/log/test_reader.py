"""Logs read from outside: ranges with their index, and positions by time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.kernel.pure import HEADER
from nsquark.log import (
    Cursor,
    Limits,
    LogReader,
    NotIndexed,
    TimeSearch,
    TopicLog,
    read_messages,
    segment,
)
from tests.log.contents import (
    Draw,
    Ids,
    Model,
    body_of,
    delete,
    directory,
    segments,
    small_reads,
    split_batches,
)

EVERYTHING = 1 << 40


def read(reader: LogReader, piece: int = 100) -> tuple[bytes, list[int]]:
    """The batches and the offsets of the index."""
    reader.locate()
    try:
        data = b"".join(iter(lambda: reader.read(piece), b""))
        assert len(data) == reader.length
        return data, [offset for (offset,) in struct.iter_unpack(">I", reader.index)]
    finally:
        reader.close()


def frame_at(data: bytes, offset: int) -> bytes:
    (size,) = struct.unpack_from(">I", data, offset)
    return data[offset : offset + 4 + size]


def reopened(log: TopicLog, ids: Ids) -> TopicLog:
    log.close()
    return TopicLog(log.directory, log.limits, ids)


@settings(max_examples=250)
@given(st.integers(0, 2**64).map(Draw))
def test_a_range_is_whole_batches_and_where_its_messages_begin(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([1, 100, 5000]), draw.choice([1, 100, 65536])):
        ids, model = draw.ids(), Model()
        log = TopicLog(draw.choice([path, path, None]), draw.limits(), ids)
        for _ in range(draw.randint(1, 12)):
            model.publish(log, draw.commit())
        if log.directory is not None and draw.random() < 0.5:
            log = reopened(log, ids)
        for _ in range(6):
            start = draw.randint(log.first, log.end)
            end = draw.randint(start, log.end)
            max_bytes = draw.choice([0, 1, 200, 1000, 1 << 30, 1 << 30])
            reader = LogReader(log, start, end, max_bytes)
            data, index = read(reader, draw.choice([1, 48, 100, 100_000]))
            assert (reader.start, reader.end) == (start, start + len(index))
            assert reader.end == end or (start < reader.end < end and max_bytes < 1 << 30)
            frames = [frame_at(data, offset) for offset in index]
            assert frames == model.frames[start : reader.end]
            batches = split_batches(data)  # which checks every CRC
            assert len(data) <= max_bytes or len(batches) <= 1
            if batches:
                assert batches[0].position <= start < batches[0].position + len(batches[0].frames)
                assert batches[-1].position < reader.end
        log.close()


@settings(max_examples=150)
@given(st.integers(0, 2**64).map(Draw))
def test_the_last_header_of_a_range_in_files(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([1, 100, 5000]), draw.choice([1, 100, 65536])):
        ids, model = draw.ids(), Model()
        log = TopicLog(path, draw.limits(), ids)
        for _ in range(draw.randint(1, 12)):
            model.publish(log, draw.commit())
        if draw.random() < 0.5:
            log = reopened(log, ids)
        start = draw.randint(log.first, log.end)
        reader = LogReader(log, start, draw.randint(start, log.end), draw.choice([0, 1000, 1 << 30]))
        reader.locate()
        for source, begin, stop in reader.files:
            data = Path(source.name).read_bytes()
            sizes = [HEADER.size + sum(map(len, each.frames)) for each in split_batches(data[begin:stop])]
            last = stop - sizes[-1]
            assert source.last_header(stop) == (last, data[last : last + HEADER.size])
        reader.close()
        log.close()


def test_no_header_is_found_where_a_length_is_damaged(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(), Ids())
    for _ in range(5):
        Model(first=log.end).publish(log, [(0, [b"x" * 50])])
    reader = LogReader(log, 0, 5, EVERYTHING)
    reader.locate()
    ((source, _, stop),) = reader.files
    (path,) = segments(tmp_path)
    for wrong in (0, 1, 47, 48, 1 << 31):
        with path.open("r+b") as file:
            file.seek(stop // 5 + 8)
            file.write(struct.pack(">I", wrong))
        with pytest.raises(LogCorrupt):
            source.last_header(stop)
    reader.close()
    log.close()


@settings(max_examples=150)
@given(st.integers(0, 2**64).map(Draw))
def test_the_first_message_at_or_after_a_time(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([1, 100, 5000]), draw.choice([1, 100, 65536])):
        ids = draw.ids()
        log = TopicLog(draw.choice([path, path, None]), draw.limits(), ids)
        times: list[int] = []
        now = 1000
        for _ in range(draw.randint(0, 15)):
            for due, bodies in draw.commit():
                now += draw.choice([0, 0, 1, 10])
                log.add_bodies(list(bodies), now, due)
                times += [now] * len(bodies)
            log.commit()
        if log.directory is not None and draw.random() < 0.5:
            log = reopened(log, ids)
        for wanted in {0, 999, 1000, now, now + 1, *(draw.randint(990, now + 5) for _ in range(8))}:
            expected = next((at for at, time in enumerate(times) if time >= wanted), len(times))
            assert TimeSearch(log).position_at(wanted) == expected
        log.close()


def test_a_range_stays_readable_when_its_files_are_deleted(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=200), Ids())
    model = Model()
    for number in range(10):
        model.publish(log, [(0, [b"%d" % number * 50])])
    reader = LogReader(log, 2, 7, EVERYTHING)
    search = TimeSearch(log)
    delete(log.trim(log.end, 0.0))
    assert len(segments(tmp_path)) == 1
    data, index = read(reader)
    assert [frame_at(data, offset) for offset in index] == model.frames[2:7]
    assert search.position_at(2) == 10
    log.close()


@pytest.mark.parametrize("start", [0, 2])
def test_a_range_whose_beginning_the_log_has_no_longer_is_empty(tmp_path: Path, start: int) -> None:
    """A caller that knew the position has waited for something else meanwhile."""
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=200), Ids())
    model = Model()
    for number in range(10):
        model.publish(log, [(0, [b"%d" % number * 50])])
    delete(log.trim(5, 0.0))
    assert 2 < log.first < 7
    reader = LogReader(log, start, 7, EVERYTHING)
    assert (reader.start, reader.count) == (start, 0)
    assert list(read_messages(reader)) == []
    log.close()


def test_no_range_holds_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsquark.log.sources.MAX_FILES", 3)
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1), Ids())
    for number in range(10):
        Model(first=number).publish(log, [(0, [b"x"])])
    reader = LogReader(log, 1, 10, EVERYTHING)
    _, index = read(reader)
    assert (reader.end, len(index)) == (4, 3)
    log.close()


def test_messages_one_by_one(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(), Ids())
    model = Model()
    model.publish(log, [(0, [b"one", b"two"]), (77, [b"later"]), (0, [b"three"])], timestamp=5)
    found = list(read_messages(LogReader(log, 1, 4, EVERYTHING)))
    assert [(each.position, each.due, each.time, bytes(each.body)) for each in found] == [
        (1, 0, 5, b"two"),
        (2, 77, 5, b"later"),
        (3, 0, 5, b"three"),
    ]
    assert [each.id for each in found] == [frame[18:34].decode() for frame in model.frames[1:]]
    assert [body_of(bytes(each.frame)) for each in found] == [b"two", b"later", b"three"]
    log.close()


@pytest.mark.parametrize("offset", [0, 12, 48, 90])
def test_a_damaged_file_is_no_range(tmp_path: Path, offset: int) -> None:
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1), Ids())
    for number in range(3):
        Model(first=3 * number).publish(log, [(0, [b"x" * 20] * 3)])
    with segments(tmp_path)[1].open("r+b") as file:
        file.seek(offset)
        file.write(b"\0\0\0\0")
    log.close()
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1), Ids())
    with pytest.raises(LogDamaged):  # at 90 it is within a frame, where only the CRC tells
        read(LogReader(log, 3, 6, EVERYTHING))
    assert len(read(LogReader(log, 6, 9, EVERYTHING))[1]) == 3
    log.close()


def test_a_file_that_has_lost_its_end_is_no_range(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(), Ids())
    Model().publish(log, [(0, [b"x" * 500] * 3)])
    with segments(tmp_path)[0].open("r+b") as file:
        file.truncate(700)
    with pytest.raises(LogCorrupt):
        read(LogReader(log, 0, 3, EVERYTHING))
    log.close()


def test_a_large_old_file_is_not_walked_by_a_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = Ids()
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1000), ids)
    for number in range(0, 40, 4):
        Model(first=number).publish(log, [(0, [b"x" * 50] * 4)])
    log = reopened(log, ids)
    monkeypatch.setattr(segment, "AT_ONCE", 0)
    with pytest.raises(NotIndexed) as wanted:
        Cursor(log, 5).read(10, EVERYTHING)
    with pytest.raises(NotIndexed):  # nothing comes from a file that was not checked
        Cursor(log, 0).read(5, EVERYTHING)
    wanted.value.segment.verify()
    cursor = Cursor(log, 5)
    run = cursor.read(10, EVERYTHING)
    assert run is not None
    assert run.position == 5
    log.close()
