"""Reading a log: whatever the pieces and wherever they lie, it is what was published."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.errors import LogCorrupt, LogDamaged, UnknownVersion
from nsquark.log import Cursor, Limits, Run, Segment, TopicLog
from nsquark.log.cursor import READ_SIZE
from tests.log.contents import (
    EVERYTHING,
    Draw,
    Ids,
    Model,
    body_of,
    delete,
    directory,
    id_of,
    segments,
    small_reads,
    split_frames,
)

DRAWS = st.integers(0, 2**64).map(Draw)


def check(run: Run, model: Model, want: int, max_bytes: int, whatever_due: bool) -> None:
    """The run is what was published there, and no more than was asked for."""
    if run.due:
        assert not whatever_due
        assert run.frames == b""
        assert (run.count, run.due) == model.deferred[run.position]
        assert run.first_id == id_of(model.frame(run.position))
        return
    frames = split_frames(run.frames)
    assert 1 <= len(frames) == run.count <= want
    assert run.count == 1 or len(run.frames) <= max_bytes
    assert frames == [model.frame(run.position + number) for number in range(run.count)]
    assert [id_of(frame) for frame in frames] == list(range(run.first_id, run.first_id + run.count))
    if not whatever_due:
        for position, (count, _) in model.deferred.items():
            assert not position <= run.position < position + count


def places(model: Model, whatever_due: bool) -> list[int]:
    """Where a cursor may be put: anywhere, but not into the middle of what it is to pass over."""
    inside = {
        position + number for position, (count, _) in model.deferred.items() for number in range(1, count)
    }
    return [
        position for position in range(model.first, model.end + 1) if whatever_due or position not in inside
    ]


@settings(max_examples=250)
@given(DRAWS)
def test_a_cursor_reads_what_was_published_from_any_position(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([50, 90, 200, 1000])):
        limits, ids, model = draw.limits(), draw.ids(), Model()
        where = None if draw.random() < 0.1 else path
        log = TopicLog(where, limits, ids)
        for _ in range(draw.randint(1, 8)):
            model.publish(log, draw.commit())
        if where and draw.random() < 0.5:  # a log that was just opened has nothing in memory
            log.close(sync=False)
            log = TopicLog(path, limits, ids)
        for _ in range(4):
            whatever_due = draw.random() < 0.5
            position = draw.choice(places(model, whatever_due))
            cursor = Cursor(log, position, whatever_due)
            while position < log.end:
                want, max_bytes = draw.choice([1, 2, 7, 1000]), draw.choice([1, 100, 700, EVERYTHING])
                run = cursor.read(want, max_bytes)
                assert run is not None
                assert run.position == position
                check(run, model, want, max_bytes, whatever_due)
                position += run.count
                assert cursor.position == position
            assert cursor.read(1, 1) is None
            assert cursor.position == log.end
        log.close(sync=False)


@settings(max_examples=250)
@given(DRAWS)
def test_cursors_read_on_while_the_log_grows_rolls_and_is_trimmed(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([50, 90, 200, 1000])):
        limits, ids, model = draw.limits(), draw.ids(), Model()
        log = TopicLog(None if draw.random() < 0.2 else path, limits, ids)
        cursors = [Cursor(log, 0, whatever_due) for whatever_due in (True, True, False)]
        for _ in range(draw.randint(5, 40)):
            which = draw.randrange(len(cursors))
            cursor, whatever_due = cursors[which], which < 2
            match draw.randrange(12):
                case 0 | 1 | 2:
                    model.publish(log, draw.commit())
                case 3:
                    allowed = [each for each in places(model, whatever_due) if each >= log.first]
                    cursor.seek(draw.choice([allowed[0], allowed[-1], draw.choice(allowed)]))
                case 4:
                    low = draw.choice([min(each.position for each in cursors), draw.randint(0, log.end)])
                    first = log.first
                    delete(log.trim(low, 0.0))
                    assert first <= log.first <= max(first, low)
                case _:
                    position, want, max_bytes = cursor.position, draw.choice([1, 2, 7, 1000]), EVERYTHING
                    run = cursor.read(want, max_bytes)
                    if run is None:
                        assert max(position, log.first) == log.end
                        continue
                    # what is gone from the log is passed over, unless the cursor has it at hand
                    assert run.position == position or position < run.position == log.first
                    check(run, model, want, max_bytes, whatever_due)
                    assert cursor.position == run.position + run.count
        for cursor in cursors:
            while cursor.read(1000, EVERYTHING) is not None:
                pass
            assert cursor.position == log.end
        log.close(sync=False)


@pytest.mark.parametrize("tail", [1, 10000])
@pytest.mark.parametrize("size", [READ_SIZE - 34 - 48, READ_SIZE, 5 * READ_SIZE // 2])
def test_messages_and_batches_larger_than_a_read(tmp_path: Path, tail: int, size: int) -> None:
    model = Model()
    limits = Limits(tail_messages=tail)
    log = TopicLog(tmp_path, limits, Ids())
    for number in range(3):
        # checked here and not by Model.publish, whose CRC would take the pure kernel's time
        log.add_bodies([bytes([number]) * size, b"small"], 1, 0)
        log.commit()
    for fresh in (log, TopicLog(tmp_path, limits, Ids(first=0)) if tail == 1 else log):
        cursor = Cursor(fresh, 0)
        bodies = []
        while (run := cursor.read(1000, READ_SIZE)) is not None:
            bodies += [body_of(frame) for frame in split_frames(run.frames)]
        assert bodies == [body for number in range(3) for body in (bytes([number]) * size, b"small")]
        cursor.seek(3)
        run = cursor.read(1, 1)
        assert run is not None
        assert body_of(bytes(run.frames)) == b"small"
        fresh.close(sync=False)
    assert model.frames == []


def test_a_deferred_batch_is_passed_over_or_read() -> None:
    model = Model()
    log = TopicLog(None, Limits(), Ids())
    model.publish(log, [(0, [b"a"]), (9, [b"b", b"c"]), (0, [b"d"])])
    plain, all_of_it = Cursor(log, 0), Cursor(log, 0, whatever_due=True)
    runs = [plain.read(10, EVERYTHING) for _ in range(4)]
    assert [(run.position, run.count, run.due) for run in runs if run] == [(0, 1, 0), (1, 2, 9), (3, 1, 0)]
    assert runs[3] is None
    run = all_of_it.read(10, EVERYTHING)
    assert run is not None
    assert split_frames(run.frames) == model.frames  # in one run, whatever batches they are in
    assert all_of_it.read(10, EVERYTHING) is None
    middle = Cursor(log, 2, whatever_due=True).read(10, EVERYTHING)
    assert middle is not None
    assert split_frames(middle.frames)[0] == model.frame(2)


def test_a_cursor_at_the_end_waits_for_more(tmp_path: Path) -> None:
    model = Model()
    log = TopicLog(tmp_path, Limits(), Ids())
    cursor = Cursor(log, 0)
    assert cursor.read(1, 1) is None
    for _ in range(3):
        model.publish(log, [(0, [b"x"])])
        run = cursor.read(5, EVERYTHING)
        assert run is not None
        assert run.frames == model.frames[-1]
        assert cursor.read(5, EVERYTHING) is None
    log.close()


def test_a_cursor_before_the_log_begins_at_its_first_message(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, Limits(), Ids(), floor=50)
    Model(first=50).publish(log, [(0, [b"x"])])
    run = Cursor(log, 3).read(5, EVERYTHING)
    assert run is not None
    assert run.position == 50
    log.close()


def test_seeking_to_where_it_is_changes_nothing() -> None:
    model = Model()
    log = TopicLog(None, Limits(), Ids())
    model.publish(log, [(0, [b"a", b"b", b"c"])])
    cursor = Cursor(log, 0)
    cursor.read(1, 1)
    cursor.seek(1)
    run = cursor.read(5, EVERYTHING)
    assert run is not None
    assert (run.position, run.count) == (1, 2)


# ---- damage


def damaged(path: Path, limits: Limits, ids: Ids, offset: int, content: bytes) -> tuple[Model, list[int]]:
    """A log of segments with 6 batches each. The fourth batch of the first has `content` at `offset`.

    Returns what was published, and the bases of the segments.
    """
    model = Model()
    log = TopicLog(path, limits, ids)
    while len(log.segments) < 3:
        model.publish(log, [(0, [b"x" * 20, b"y" * 20])])
    bases = [segment.base for segment in log.segments]
    log.close(sync=False)
    first = segments(path)[0]
    data = bytearray(first.read_bytes())
    at = 3 * 156 + offset
    data[at : at + len(content)] = content
    first.write_bytes(data)
    return model, bases


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"NQBx"),  # the magic
        (8, b"\xff\xff\xff\xff"),  # the length
        (8, bytes(4)),
        (8, b"\x00\x00\x00\x9d"),
        (48, b"\x7f\xff\xff\xff"),  # the size of its first message
        (48, bytes(4)),
        (102, b"\x00\x00\x00\x1d"),  # that of its second one
        (66, b"not hexadecimal!"),  # the id
        (90, b"a body"),
    ],
)
@pytest.mark.parametrize("read_size", [100, READ_SIZE])
def test_a_cursor_delivers_nothing_of_a_damaged_batch(
    tmp_path: Path, offset: int, content: bytes, read_size: int
) -> None:
    limits, ids = Limits(max_bytes_per_file=6 * 156), Ids()
    with small_reads(read_size):
        model, _ = damaged(tmp_path, limits, ids, offset, content)
        for start in range(12):
            log = TopicLog(tmp_path, limits, ids)
            cursor = Cursor(log, start)
            if not log.lost:  # it was not looked at yet
                for _ in range(2):
                    with pytest.raises(LogDamaged) as caught:
                        cursor.read(1, EVERYTHING)
                    assert caught.value.segment == str(segments(tmp_path)[0])
                    assert cursor.position == start
                log.leave_out(cast(Segment, caught.value.part))
            assert list(log.lost) == [(6, 8)]
            read = []
            while (run := cursor.read(1, EVERYTHING)) is not None:
                check(run, model, 1, EVERYTHING, False)
                read.append(run.position)
            assert read == [position for position in range(start, model.end) if position not in (6, 7)]
            log.close(sync=False)


def test_a_segment_that_is_too_short_has_lost_its_end(tmp_path: Path) -> None:
    limits, ids = Limits(max_bytes_per_file=6 * 156), Ids()
    model, bases = damaged(tmp_path, limits, ids, 0, b"NQB1")
    first = segments(tmp_path)[0]
    first.write_bytes(first.read_bytes()[: 4 * 156 + 60])
    log = TopicLog(tmp_path, limits, ids)
    cursor = Cursor(log, 0)
    with pytest.raises(LogDamaged) as caught:
        cursor.read(3, EVERYTHING)
    log.leave_out(cast(Segment, caught.value.part))
    while cursor.position < 8:
        run = cursor.read(3, EVERYTHING)
        assert run is not None
        check(run, model, 3, EVERYTHING, False)
    run = cursor.read(1, EVERYTHING)
    assert run is not None
    assert run.position == bases[1]
    log.close(sync=False)


@settings(max_examples=200)
@given(DRAWS)
def test_damage_anywhere_is_reported_or_harmless(draw: Draw) -> None:
    """Old segments are not checked when a log is opened: reading them must end, and end well."""
    with directory() as path, small_reads(draw.choice([60, 300, 2000])):
        limits, ids, model = Limits(max_bytes_per_file=700, tail_messages=0), draw.ids(), Model()
        log = TopicLog(path, limits, ids)
        while len(log.segments) < 3:
            model.publish(log, draw.commit())
        log.close(sync=False)
        victim = draw.choice(segments(path)[:-1])
        data = bytearray(victim.read_bytes())
        at = draw.randrange(len(data))
        match draw.randrange(3):
            case 0:
                del data[at:]
            case 1:
                data[at] ^= 1 << draw.randrange(8)
            case _:
                data[at : at + 8] = draw.randbytes(8)
        victim.write_bytes(data)
        try:
            log = TopicLog(path, limits, ids)
        except UnknownVersion:  # one byte of the first magic says so: the file is left as it is
            assert victim.read_bytes() == data
            return
        cursor = Cursor(log, 0, draw.random() < 0.5)
        for _ in range(3 * len(model.frames) + 10):
            position = cursor.position
            try:
                run = cursor.read(draw.choice([1, 3, 1000]), EVERYTHING)
            except LogCorrupt:
                assert cursor.position == position
                segment = log.segment_at(position)
                assert segment is not None
                following = log.segment_after(segment)
                cursor.seek(log.end if following is None else following.base)
                continue
            except UnknownVersion:  # or of another
                return
            if run is None:
                break
            assert cursor.position > position
        assert cursor.position >= log.end
        log.close(sync=False)


@given(DRAWS)
def test_a_cursor_that_rests_between_reads_reads_the_same(draw: Draw) -> None:
    with directory() as path, small_reads(200):
        log = TopicLog(path, Limits(max_bytes_per_file=3000, tail_messages=5), Ids())
        for number in range(draw.randint(1, 40)):
            due = 5 if draw.randrange(10) == 0 else 0
            log.add_bodies([b"%d" % number * draw.randint(1, 60)] * draw.randint(1, 4), number, due)
            log.commit()
        seen = []
        for rests in (0, 1, 2):
            cursor, runs = Cursor(log, log.first), []
            while (run := cursor.read(1, EVERYTHING)) is not None:
                runs.append((run.position, run.count, run.first_id, run.due, bytes(run.frames)))
                for _ in range(rests):
                    left = cursor.rest()
                assert rests < 2 or not left
                if rests == 2 and run.position % 3 == 0:
                    log.tail.chunks.clear()
            seen.append(runs)
        assert seen[0] == seen[1] == seen[2]
        log.close()


@pytest.mark.parametrize("size", [1000, 700_000, 3_000_000])
def test_a_file_of_large_messages_is_read_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    log = TopicLog(tmp_path, Limits(tail_messages=1), Ids())
    bodies = [b"%d" % number + bytes(size) for number in range(2000 if size == 1000 else 8)]
    for body in bodies:
        log.add_bodies([body], 1, 0)
        log.commit()
    read: list[int] = []
    pread = os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        data = pread(fd, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    cursor, found = Cursor(log, 0), list[bytes]()
    while (run := cursor.read(1000, 1)) is not None:
        found.append(body_of(bytes(run.frames)))
    assert found == bodies
    # and the first of them once more, in pieces that grow until it is whole
    assert sum(read) < log.size + 2 * size + READ_SIZE
    log.close()
