"""Cursors that lag together share what one of them has read of a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import LogCorrupt
from nsquark.log import RECENT_READS, Cursor, Limits, Segment, TopicLog
from nsquark.log.cursor import READ_SIZE
from nsquark.log.recent_reads import ReadPiece, RecentReads
from tests.log.contents import EVERYTHING, Draw, Ids, Model, directory, small_reads, split_frames

DRAWS = st.integers(0, 2**64).map(Draw)


class Reads:
    """Counts the reads of files, and can have one of them return what the file does not hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.wrong = False
        self._real = os.pread
        monkeypatch.setattr(os, "pread", self._pread)

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        self.count += 1
        data = self._real(fd, size, offset)
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


@settings(max_examples=150)
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


def test_a_read_that_was_wrong_is_no_loss_to_those_who_shared_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path, 40, READ_SIZE // 20)
    first, second, third = Cursor(log, 0), Cursor(log, 0), Cursor(log, 0)
    assert third.read(1, EVERYTHING) is not None
    reads = Reads(monkeypatch)
    reads.wrong = True
    for cursor in (first, second):
        assert cursor.read(1, EVERYTHING) is not None
    assert second.data is first.data
    with pytest.raises(LogCorrupt) as caught:
        rest_of(first)
    segment = log.suspect(caught.value)
    assert segment is not None
    segment.verify()
    first.let_go()
    assert log.suspect(caught.value) is None  # once more, and the rest of the file would be given up
    for cursor in (first, second, third):
        position = cursor.position
        assert rest_of(cursor) == model.frames[position:]
    log.close()


def test_what_is_shared_is_bounded_and_forgotten(tmp_path: Path) -> None:
    recent = RecentReads(max_bytes=1000)
    segments = [Segment(tmp_path, base) for base in range(30)]
    for segment in segments:
        recent.add(ReadPiece(segment, 100, bytes(100)))
    assert [bool(recent.find(segment, 100, 0)) for segment in segments] == [False] * 20 + [True] * 10
    recent.add(ReadPiece(segments[0], 0, bytes(251)))  # too large
    recent.add(ReadPiece(segments[0], 0, b""))
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
