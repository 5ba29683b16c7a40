"""A log whose newest segment was torn at any byte goes on with every whole batch before that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import Deferred, Limits, TopicLog
from tests.log.contents import (
    Batch,
    Draw,
    Ids,
    Model,
    directory,
    id_of,
    read_all,
    segments,
    small_reads,
    split_batches,
)

DRAWS = st.integers(0, 2**64).map(Draw)


def stored(path: Path) -> list[list[Batch]]:
    """The batches in each segment, oldest first."""
    return [split_batches(each.read_bytes()) for each in segments(path)]


def damage(draw: Draw, path: Path) -> int:
    """Cut the file, lose its end, or add to it; returns how much of it is as it was."""
    before = path.read_bytes()
    after = bytearray(before)
    at = draw.randint(0, len(before))
    match draw.choice(["cut", "cut", "zeros", "noise", "none"]):
        case "cut":
            del after[at:]
        case "zeros":  # as file systems leave them behind
            after[at:] = bytes(len(before) - at + draw.choice([0, 4096]))
        case "noise":
            after += draw.randbytes(100)
    path.write_bytes(after)
    pairs = enumerate(zip(before, after, strict=False))
    return next((at for at, (old, new) in pairs if old != new), min(len(before), len(after)))


@settings(max_examples=250)
@given(DRAWS)
def test_every_whole_batch_before_the_damage_is_kept(draw: Draw) -> None:
    with directory() as path, small_reads(draw.choice([100, 500, 1 << 20])):
        limits, ids, model = draw.limits(), draw.ids(), Model()
        log = TopicLog(path, limits, ids)
        for _ in range(draw.randint(0, 8)):
            model.publish(log, draw.commit())
        log.close(sync=False)

        before = stored(path)
        newest = segments(path)[-1]
        intact = damage(draw, newest)
        whole = [batch for batch in before[-1] if batch.offset + batch.length <= intact]
        kept = [batch for each in before[:-1] for batch in each] + whole
        frames = [frame for batch in kept for frame in batch.frames]

        log = TopicLog(path, limits, ids)
        assert (log.first, log.end) == (0, len(frames))
        assert log.recovered == [
            Deferred(batch.position, len(batch.frames), batch.due) for batch in whole if batch.due
        ]
        assert stored(path) == [*before[:-1], whole]
        assert read_all(log) == frames == model.frames[: len(frames)]

        # and on it goes
        again = Model(list(frames))
        for _ in range(draw.randint(1, 3)):
            again.publish(log, draw.commit())
        assert read_all(log) == again.frames
        given_before = {id_of(frame) for frame in model.frames}
        given_after = [id_of(frame) for frame in again.frames[len(frames) :]]
        assert given_before.isdisjoint(given_after)
        assert len(set(given_after)) == len(given_after)
        log.close(sync=False)

        log = TopicLog(path, limits, ids)
        assert read_all(log) == again.frames
        log.close(sync=False)


def test_a_log_cut_at_every_byte() -> None:
    with directory() as path:
        ids, model = Ids(3), Model()
        log = TopicLog(path, Limits(), ids)
        for commit in ([(0, [b"one", b"two"])], [(7, [b"later"]), (0, [b"three"])], [(0, [b"x"] * 5)]):
            model.publish(log, commit)
        log.close(sync=False)
        [newest] = segments(path)
        data = newest.read_bytes()
        batches = split_batches(data)
        for size in range(len(data), -1, -1):
            newest.write_bytes(data[:size])
            log = TopicLog(path, Limits(), ids)
            frames = [
                frame for batch in batches if batch.offset + batch.length <= size for frame in batch.frames
            ]
            assert log.end == len(frames)
            assert read_all(log) == frames
            log.close(sync=False)


def test_a_new_segment_that_was_never_written_to(tmp_path: Path) -> None:
    ids, model = Ids(), Model()
    log = TopicLog(tmp_path, Limits(), ids)
    model.publish(log, [(0, [b"one", b"two"])])
    log.close()
    (tmp_path / f"{2:020d}.log").touch()
    log = TopicLog(tmp_path, Limits(), ids)
    assert (log.first, log.end) == (0, 2)
    assert read_all(log) == model.frames
    model.publish(log, [(0, [b"three"])])
    assert read_all(log) == model.frames
    log.close()
    assert [len(each) for each in stored(tmp_path)] == [1, 1]


def test_a_segment_that_lost_everything_keeps_its_position(tmp_path: Path) -> None:
    ids, model = Ids(), Model()
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=1), ids)
    for number in range(4):
        model.publish(log, [(0, [b"%d" % number])])
    log.close()
    os.truncate(segments(tmp_path)[-1], 0)
    log = TopicLog(tmp_path, Limits(), ids)
    assert log.end == 3
    assert read_all(log) == model.frames[:3]
    log.close()


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    others = {"journal.000001": b"j", "notes.log": b"n", "x": b"x", "1.log.tmp": b"t"}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    log = TopicLog(tmp_path, Limits(), Ids(), floor=5)
    Model(first=5).publish(log, [(0, [b"one"])])
    log.close()
    assert {name: (tmp_path / name).read_bytes() for name in others} == others


def test_only_the_newest_segment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, model = Ids(), Model()
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=200), ids)
    for number in range(10):
        model.publish(log, [(0, [b"%d" % number * 30])])
    log.close()
    total = sum(path.stat().st_size for path in segments(tmp_path))
    read = 0
    real = os.pread

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    log = TopicLog(tmp_path, Limits(), ids)
    assert 0 < read <= segments(tmp_path)[-1].stat().st_size < total / 3
    log.close()
