"""Cursors that lag together share what one of them has read of a file."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.log import RECENT_READS, Cursor, Limits, NotIndexed, Segment, TopicLog
from nsquark.log.cursor import READ_SIZE
from nsquark.log.recent_reads import ReadPiece, RecentReads
from tests.log.contents import EVERYTHING, Draw, Ids, Model, directory, small_reads, split_frames

DRAWS = st.integers(0, 2**64).map(Draw)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RECENT_READS, "least", 1)


class Reads:
    """Counts the reads of files, and can have them return what the files do not hold, or refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.wrong = False
        self.readable = EVERYTHING
        self._real = os.pread
        monkeypatch.setattr(os, "pread", self._pread)

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        self.count += 1
        if offset >= self.readable:
            raise OSError(errno.EIO, "Input/output error")
        data = self._real(fd, min(size, self.readable - offset), offset)
        if self.wrong:
            self.wrong = False
            return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
        return data


def filled(path: Path, messages: int, size: int) -> tuple[TopicLog, Model]:
    """A log whose messages are in its files only."""
    log, model = TopicLog(path, Limits(tail_messages=0), Ids()), Model()
    for number in range(messages):
        model.publish(log, [(0, [b"%06d" % number + bytes(size)])])
    log.tail.clear()
    return log, model


def rest_of(cursor: Cursor, want: int = 10) -> list[bytes]:
    frames: list[bytes] = []
    while (run := cursor.read(want, EVERYTHING)) is not None:
        frames += split_frames(run.frames)
    return frames


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DRAWS)
def test_cursors_that_take_turns_read_what_was_published(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([90, 200, 1000])):
        limits, model = draw.limits(), Model()
        log = TopicLog(path, limits, draw.ids())
        for _ in range(draw.randint(1, 6)):
            model.publish(log, draw.commit())
        cursors: list[Cursor] = []
        for turn in range(60):
            if len(cursors) < 5 and draw.random() < 0.5:
                cursors.append(Cursor(log, draw.randint(log.first, log.end), draw.random() < 0.5))
            if turn < 30 and draw.random() < 0.2:
                model.publish(log, draw.commit())
            if draw.random() < 0.1:
                log.tail.clear()
            for cursor in cursors:
                if draw.random() < 0.05:
                    cursor.seek(draw.randint(log.first, log.end))
                run = cursor.read(draw.choice([1, 2, 7]), draw.choice([1, 100, EVERYTHING]))
                if run is None:
                    assert cursor.position == log.end
                elif not run.due:
                    expected = model.frames[run.position : run.position + run.count]
                    assert split_frames(run.frames) == expected
        log.close(sync=False)


def test_cursors_that_lag_together_read_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, model = filled(tmp_path, 300, 10_000)
    reads = Reads(monkeypatch)
    assert rest_of(Cursor(log, 0)) == model.frames
    alone, reads.count = reads.count, 0
    cursors = [Cursor(log, position) for position in range(20)]
    got: list[list[bytes]] = [[] for _ in cursors]
    while any(cursor.position < log.end for cursor in cursors):
        for cursor, frames in zip(cursors, got, strict=True):
            if (run := cursor.read(5, EVERYTHING)) is not None:
                frames += split_frames(run.frames)
    for first, frames in enumerate(got):
        assert frames == model.frames[first:]
    assert reads.count <= 3 * alone
    log.close()


def share_a_wrong_read(reads: Reads, first: Cursor, second: Cursor) -> LogCorrupt:
    """Have both hold a piece whose end is not what the file holds; what the first says of that end."""
    reads.wrong = True
    for cursor in (first, second):
        assert cursor.read(1, EVERYTHING) is not None
    assert second.data is first.data
    with pytest.raises(LogCorrupt) as caught:
        rest_of(first)
    return caught.value


def test_a_read_that_was_wrong_is_no_loss_to_those_who_shared_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path, 40, READ_SIZE // 20)
    first, second, third = Cursor(log, 0), Cursor(log, 0), Cursor(log, 0)
    assert third.read(1, EVERYTHING) is not None
    reads = Reads(monkeypatch)
    error = share_a_wrong_read(reads, first, second)
    segment = log.suspect(error)
    assert segment is not None
    assert log.suspect(error) is segment  # who finds it out meanwhile waits, too
    segment.verify()
    first.let_go()
    for cursor in (first, second):
        position = cursor.position
        assert rest_of(cursor) == model.frames[position:]
    # A file that reads wrong once more is given up by the reader that has found that out, and by no other.
    first.seek(0)
    second.seek(0)
    RECENT_READS.forget(segment)
    assert log.suspect(share_a_wrong_read(reads, first, second)) is None
    for cursor in (second, third):
        position = cursor.position
        assert rest_of(cursor) == model.frames[position:]
    log.close()


def test_a_reader_of_a_damaged_file_waits_while_another_has_it_verified(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3000, 1000)
    segment = log.segments[0]
    with open(segment.path, "r+b") as file:
        file.seek(segment.size // 2)
        file.write(bytes(2000))
    first, second, third = Cursor(log, 0), Cursor(log, 0), Cursor(log, 0)
    for cursor in (second, third):
        assert cursor.read(1, EVERYTHING) is not None
    with pytest.raises(LogCorrupt) as caught:
        rest_of(first)
    assert log.suspect(caught.value) is segment
    with pytest.raises(NotIndexed):
        rest_of(second)
    assert 0 < second.position < first.position
    with pytest.raises(LogDamaged):
        segment.verify()
    [record] = log.leave_out(segment)
    lost = range(*record.lost)
    assert 0 < len(lost) < 5
    for cursor in (first, second, third):
        if cursor is first:
            cursor.let_go()
        position = cursor.position
        rest = [frame for at, frame in enumerate(model.frames) if at >= position and at not in lost]
        assert rest_of(cursor) == rest
    log.close()


def test_a_file_that_can_be_read_in_part_only_ends_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = filled(tmp_path, 20, 1000)
    reads = Reads(monkeypatch)
    reads.readable = 4096
    with pytest.raises(OSError, match="Input"):
        Cursor(log, 10).read(1, EVERYTHING)
    assert reads.count < 10
    reads.readable = EVERYTHING
    os.truncate(log.segments[0].path, 4096)
    reads.count = 0
    with pytest.raises(LogCorrupt):
        Cursor(log, 10).read(1, EVERYTHING)
    assert reads.count < 10
    log.close()


def test_a_cursor_that_rests_holds_nothing_of_a_file(tmp_path: Path) -> None:
    log, model = TopicLog(tmp_path, Limits(tail_messages=0), Ids()), Model()
    model.publish(log, [(0, [b"first"]), (10**18, [bytes(1000)] * 100)])
    model.publish(log, [(0, [b"last"])])
    log.tail.clear()
    cursors = [Cursor(log, 50) for _ in range(3)]  # within the deferred batch
    for cursor in cursors:
        run = cursor.read(10, EVERYTHING)
        assert run is not None
        assert (run.position, run.count, run.due) == (50, 51, 10**18)
    for _ in range(2):
        RECENT_READS.forget_unused()
        for cursor in cursors:
            cursor.rest()
    segment = log.segments[0]
    assert not any(type(each) is ReadPiece and each.segment is segment for each in gc.get_objects())
    for cursor in cursors:
        assert not cursor.rest()
        assert rest_of(cursor) == model.frames[101:]
    log.close()


def test_what_is_shared_is_bounded_and_forgotten(tmp_path: Path) -> None:
    recent = RecentReads(max_bytes=1000, least=50)
    segments = [Segment(tmp_path, base) for base in range(30)]
    for segment in segments:
        recent.add(ReadPiece(segment, 100, bytes(100)))
    assert [bool(recent.find(segment, 100, 0)) for segment in segments] == [False] * 20 + [True] * 10
    recent.add(ReadPiece(segments[0], 0, bytes(251)))  # too large
    recent.add(ReadPiece(segments[0], 0, bytes(49)))  # too small
    assert len(recent) == 10
    assert recent.find(segments[0], 0, 0) is None
    newest = segments[-1]
    for offset, known in ((99, 0), (200, 0), (150, 50)):
        assert recent.find(newest, offset, known) is None
    assert recent.find(newest, 150, 49) is not None
    recent.forget(newest)
    assert recent.find(newest, 100, 0) is None
    recent.forget_unused()
    assert recent.find(segments[25], 100, 0) is not None
    recent.forget_unused()
    assert [bool(recent.find(segment, 100, 0)) for segment in segments] == [False] * 25 + [True] + [False] * 4


def test_what_two_have_read_is_kept_until_the_log_is_closed(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 10, 100)
    segment = log.segments[0]
    alone, another = Cursor(log, 0), Cursor(log, 0)
    assert len(rest_of(alone)) == 10
    assert RECENT_READS.find(segment, 0, 0) is None  # for one reader alone nothing is kept
    assert len(rest_of(another)) == 10
    assert RECENT_READS.find(segment, 0, 0) is not None
    log.close()
    assert RECENT_READS.find(segment, 0, 0) is None
