"""The log of a topic: what is published, kept in memory, rolled, trimmed, and refused by a full disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.log import UNLIMITED, Cursor, Limits, LogSync, Ranges, Retention, TopicLog, files, topic_log
from nsquark.log import segment as segment_module
from tests.log.contents import (
    EVERYTHING,
    Draw,
    Ids,
    Model,
    body_of,
    delete,
    directory,
    id_of,
    read_all,
    segments,
    split_batches,
    split_frames,
)

PUBS = b"".join(b"PUB t\n\x00\x00\x00" + bytes([len(body)]) + body for body in (b"one", b"three"))
MPUB = b"\x00\x00\x00\x02\x00\x00\x00\x03one\x00\x00\x00\x05three"


def opened(path: Path | None, ids: Ids | None = None, floor: int = 0, **limits: float) -> TopicLog:
    return TopicLog(path, Limits(**limits), ids or Ids(), floor)  # type: ignore[arg-type]


def filled(path: Path, commits: int, **limits: float) -> tuple[TopicLog, Model]:
    """A log with a message of ten bytes in each commit."""
    log, model = opened(path, **limits), Model()
    for number in range(commits):
        model.publish(log, [(0, [b"%010d" % number])])
    return log, model


ONE = 48 + 34 + 10  # bytes of such a commit


# ---- publishing


def test_messages_are_numbered_and_framed(tmp_path: Path) -> None:
    log = opened(tmp_path / "new" / "topic", Ids(first=0x50))
    assert (log.first, log.end, log.pending) == (0, 0, 0)
    assert log.add_pubs(PUBS, 0, 2, len(b"PUB t\n"), 111) == 8
    assert log.add_mpub(MPUB, 0, 2, 222) == 8
    assert log.add_bodies([b"x", memoryview(b"yy")], 333, 0) == 3
    assert (log.end, log.pending) == (0, 6)
    assert log.writer.size == 48 + 6 * 34 + 19
    assert log.commit() == 6
    assert (log.first, log.end, log.pending, log.writer.size) == (0, 6, 0, 0)
    [batch] = split_batches(segments(tmp_path / "new" / "topic")[0].read_bytes())
    assert (batch.position, batch.first_id, batch.timestamp, batch.due) == (0, 0x50, 111, 0)
    assert [body_of(frame) for frame in batch.frames] == [b"one", b"three", b"one", b"three", b"x", b"yy"]
    assert [int.from_bytes(frame[8:16], "big") for frame in batch.frames] == [111, 111, 222, 222, 333, 333]
    assert {frame[16:18] for frame in batch.frames} == {b"\x00\x01"}
    log.close()


def test_nothing_to_commit_writes_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.commit() == 0
    assert segments(tmp_path)[0].stat().st_size == 0
    log.close()


def test_a_commit_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path, Ids(3))
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(len(data)) or real(fd, data))
    for due in (0, 5, 5, 0):
        log.add_bodies([b"x", b"y"], 1, due)
    log.commit()
    assert len(writes) == 1
    assert sum(writes) == segments(tmp_path)[0].stat().st_size
    log.close()


def test_due_times_share_batches_only_with_their_like(tmp_path: Path) -> None:
    log, model = opened(tmp_path), Model()
    model.publish(log, [(0, [b"a"]), (0, [b"b"]), (7, [b"c"]), (7, [b"d"]), (8, [b"e"]), (0, [b"f"])])
    batches = split_batches(segments(tmp_path)[0].read_bytes())
    assert [(batch.position, len(batch.frames), batch.due) for batch in batches] == [
        (0, 2, 0),
        (2, 2, 7),
        (4, 1, 8),
        (5, 1, 0),
    ]
    log.close()


def test_ids_come_from_leases_and_follow_each_other_within_one(tmp_path: Path) -> None:
    ids = Ids(block=5, first=100)
    log, model = opened(tmp_path, ids), Model()
    for _ in range(4):
        model.publish(log, [(0, [b"x", b"y"])])
    model.publish(log, [(0, [b"z"] * 9)])
    # two pairs fit a block of five; the fifth id of each is wasted
    assert [id_of(frame) for frame in model.frames] == [
        100,
        101,
        102,
        103,
        106,
        107,
        108,
        109,
        *range(112, 121),
    ]
    assert ids.leases == 3
    log.close()


def test_a_new_log_begins_at_the_floor_and_an_old_one_where_it_was(tmp_path: Path) -> None:
    log = opened(tmp_path, floor=1000)
    assert (log.first, log.end) == (1000, 1000)
    assert [path.name for path in segments(tmp_path)] == ["00000000000000001000.log"]
    model = Model(first=1000)
    model.publish(log, [(0, [b"x"])])
    assert split_batches(segments(tmp_path)[0].read_bytes())[0].position == 1000
    log.close()
    log = opened(tmp_path, floor=5000)
    assert (log.first, log.end) == (1000, 1001)
    log.close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 3, max_bytes_per_file=1)
    assert {stat.S_IMODE(path.stat().st_mode) for path in segments(tmp_path)} == {0o600}
    log.close()


def test_what_was_not_committed_is_gone(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 2)
    log.add_bodies([b"lost"], 1, 0)
    log.close()
    log = opened(tmp_path)
    assert read_all(log) == model.frames
    log.close()


# ---- segments


def test_a_segment_rolls_before_it_grows_too_large(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 7, max_bytes_per_file=3 * ONE)
    assert [path.name for path in segments(tmp_path)] == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert [path.stat().st_size for path in segments(tmp_path)] == [3 * ONE, 3 * ONE, ONE]
    assert [(each.base, each.end, each.size) for each in log.segments] == [
        (0, 3, 3 * ONE),
        (3, 6, 3 * ONE),
        (6, 7, ONE),
    ]
    assert read_all(log) == model.frames
    log.close()


def test_a_commit_larger_than_a_file_has_one_for_itself(tmp_path: Path) -> None:
    log, model = opened(tmp_path, max_bytes_per_file=100), Model()
    model.publish(log, [(0, [b"x" * 1000])])
    model.publish(log, [(0, [b"y" * 1000, b"z" * 1000])])
    assert [each.base for each in log.segments] == [0, 1]
    assert read_all(log) == model.frames
    log.close()


def test_segments_are_found_by_position(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 7, max_bytes_per_file=3 * ONE)
    bases = [log.segment_at(position).base for position in range(9)]  # type: ignore[union-attr]
    assert bases == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    first, second, third = log.segments
    assert log.segment_after(first) is second
    assert log.segment_after(third) is None
    delete(log.trim(4, 0.0))
    assert log.segment_at(0) is second  # the first one behind
    assert log.segment_after(first) is second  # of one that is gone, too
    log.close()


# ---- the tail in memory


@pytest.mark.parametrize("limit", [0, 1, 8])
def test_the_tail_is_bounded_by_messages(tmp_path: Path, limit: int) -> None:
    log, model = opened(tmp_path, tail_messages=limit), Model()
    for number in range(50):
        model.publish(log, [(0, [b"%d" % number])])
        assert 1 <= log.tail_length <= max(limit, 1)
        for position in range(log.end):
            chunk = log.tail.find(position)
            assert (chunk is not None) == (position >= log.end - log.tail_length)
            assert chunk is None or chunk.position <= position < chunk.end
    assert log.tail.find(log.end) is None
    assert read_all(log) == model.frames
    log.close()


def test_the_tail_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "TAIL_BYTES", 1000)
    log, model = opened(tmp_path), Model()
    for _ in range(20):
        model.publish(log, [(0, [b"x" * 300])])
        assert log.tail_length <= 2
    model.publish(log, [(0, [b"x" * 5000])])
    assert log.tail_length == 1  # what is newest is kept whatever its size
    log.close()


def test_a_log_that_nobody_writes_to_frees_its_memory(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 5)
    assert log.trimmable
    log.trim(0, 0.0)
    assert log.tail_length == 5
    log.trim(0, 0.0)
    assert log.tail_length == 0
    assert not log.trimmable
    assert read_all(log) == model.frames
    model.publish(log, [(0, [b"more"])])
    assert log.tail_length == 1
    assert read_all(log) == model.frames
    log.close()


# ---- fsync


def synced_by(sync: LogSync) -> list[str]:
    paths: list[str] = []
    sync.run(lambda fd: paths.append(os.readlink(f"/proc/self/fd/{fd}")))
    return paths


def test_what_is_to_be_synced(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 7, max_bytes_per_file=3 * ONE)
    assert log.unsynced == 7
    sync = log.start_sync()
    model.publish(log, [(0, [b"more"])])
    # the folders say that the files are there
    folders = [str(tmp_path), str(tmp_path.parent)]
    assert synced_by(sync) == [*[str(path) for path in segments(tmp_path)], *folders]
    assert log.finish_sync(sync) is None
    assert log.unsynced == 1
    sync = log.start_sync()
    assert synced_by(sync) == [str(segments(tmp_path)[-1])]
    assert log.finish_sync(sync) is None
    assert log.unsynced == 0
    log.close()


def test_closing_syncs_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    filled(tmp_path / "a", 7, max_bytes_per_file=3 * ONE)[0].close()
    assert len(synced) == 3 + 2
    filled(tmp_path / "b", 7)[0].close(sync=False)
    assert len(synced) == 3 + 2


def test_closing_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    log, _ = filled(tmp_path, 9, max_bytes_per_file=2 * ONE, tail_messages=1)
    read_all(log)
    delete(log.trim(5, 0.0))
    log.close()
    log.close()
    assert set(os.listdir("/proc/self/fd")) <= before


# ---- letting go


def test_what_is_before_the_low_water_mark_goes_by_whole_segments(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 10, max_bytes_per_file=3 * ONE)
    for low, first in ((0, 0), (2, 0), (3, 3), (5, 3), (9, 9), (10, 9)):
        gone = log.trim(low, 0.0)
        assert all(segment.path.exists() for segment in gone)  # deleting is for the caller
        delete(gone)
        assert log.first == first
        assert log.segments[0].base == first
        assert read_all(log) == model.frames[first:]
    assert len(segments(tmp_path)) == 1
    log.close()
    log = opened(tmp_path)
    assert (log.first, log.end) == (9, 10)
    log.close()


def test_a_large_log_that_is_all_consumed_begins_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROLL_WHEN_CONSUMED", 3 * ONE)
    log, model = filled(tmp_path, 2)
    assert log.trim(2, 0.0) == []  # too small to be worth it
    model.publish(log, [(0, [b"%010d" % 2])])
    assert log.trim(2, 0.0) == []  # not all of it is consumed
    delete(log.trim(3, 0.0))
    assert (log.first, log.end) == (3, 3)
    assert [path.name for path in segments(tmp_path)] == [f"{3:020d}.log"]
    model.publish(log, [(0, [b"next"])])
    assert read_all(log) == model.frames[3:]
    log.close()
    log = opened(tmp_path)
    assert (log.first, log.end) == (3, 4)
    log.close()


def test_a_large_log_that_is_nearly_consumed_begins_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROLL_WHEN_NEARLY_CONSUMED", 8 * ONE)
    monkeypatch.setattr(segment_module, "INDEX_STRIDE", ONE)
    log, model = filled(tmp_path, 7)
    assert not log.lets_go_before(6, 0.0)
    assert log.trim(6, 0.0) == []  # too small to be worth it
    model.publish(log, [(0, [b"%010d" % 7])])
    assert not log.lets_go_before(5, 0.0)
    assert log.trim(5, 0.0) == []  # three of eight are needed
    assert [path.name for path in segments(tmp_path)] == [f"{0:020d}.log"]
    assert log.lets_go_before(6, 0.0)
    assert log.trim(6, 0.0) == []  # two are, so the file stays, and is the last but one
    assert [path.name for path in segments(tmp_path)] == [f"{0:020d}.log", f"{8:020d}.log"]
    model.publish(log, [(0, [b"next"])])
    assert not log.lets_go_before(7, 0.0)
    assert log.lets_go_before(8, 0.0)
    assert read_all(log) == model.frames
    delete(log.trim(8, 0.0))
    assert (log.first, log.end) == (8, 9)
    log.close()
    log = opened(tmp_path)
    assert read_all(log) == model.frames[8:]
    log.close()


def test_a_log_says_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every so many bytes, and with every new file, and not while what it is told of is half done."""
    monkeypatch.setattr(files, "TRIM_EVERY", 3 * ONE)
    told: list[int] = []
    log = TopicLog(tmp_path, Limits(max_bytes_per_file=7 * ONE), Ids(), grown=lambda: told.append(log.end))
    model = Model()
    for number in range(12):
        model.publish(log, [(0, [b"%010d" % number])])
    assert told == [3, 6, 7, 10]
    assert [path.name for path in segments(tmp_path)] == [f"{0:020d}.log", f"{7:020d}.log"]
    assert read_all(log) == model.frames
    log.close()


def test_trimming_files_again_and_again_keeps_the_memory(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 3)
    for _ in range(3):
        log.trim_files(0, 0.0)
    assert log.tail_length == 3
    for _ in range(2):
        log.trim(0, 0.0)
    assert log.tail_length == 0
    log.close()


@pytest.mark.parametrize(("kept", "first"), [(10, 0), (9, 3), (7, 3), (6, 6), (1, 9)])
def test_retention_keeps_bytes(tmp_path: Path, kept: int, first: int) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE, retention_bytes=kept * ONE)
    delete(log.trim(10, 0.0))
    assert log.first == first
    log.close()


def test_retention_keeps_nothing_from_who_needs_it(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE, retention_bytes=1)
    delete(log.trim(4, 1e12))
    assert log.first == 3
    log.close()


def test_retention_keeps_for_a_time(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE, retention_time=60.0)
    for number, segment in enumerate(log.segments):
        segment.modified = 1000.0 + 10 * number
    for now, first in ((1000.0, 0), (1060.0, 0), (1060.5, 3), (1070.5, 6), (1080.5, 9), (9999.0, 9)):
        delete(log.trim(10, now))
        assert log.first == first
    log.close()


def test_with_both_retentions_the_first_that_is_exceeded_decides(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE, retention_bytes=8 * ONE, retention_time=60.0)
    for segment in log.segments:
        segment.modified = 1000.0
    delete(log.trim(10, 1001.0))
    assert log.first == 3  # by bytes
    delete(log.trim(10, 1100.0))
    assert log.first == 9  # by time
    log.close()


def test_retention_outlives_the_process(tmp_path: Path) -> None:
    filled(tmp_path, 10, max_bytes_per_file=3 * ONE)[0].close()
    for number, path in enumerate(segments(tmp_path)):
        os.utime(path, (1000.0 + 10 * number, 1000.0 + 10 * number))
    log = opened(tmp_path, retention_time=60.0)
    delete(log.trim(10, 1065.0))
    assert log.first == 3
    log.close()


@pytest.mark.parametrize(
    ("retention", "first"),
    [
        (Retention(), 9),
        (Retention(bytes=7 * ONE), 3),
        (Retention(time=10 * 10**9), 0),
        (Retention(time=10**9), 9),
        (Retention(UNLIMITED, 0), 0),
        (Retention(0, UNLIMITED), 0),
        (Retention(UNLIMITED, 10**9), 9),
        (Retention(7 * ONE, UNLIMITED), 3),
        (Retention(0, 0), 9),
    ],
)
def test_a_log_keeps_to_other_limits_from_then_on(tmp_path: Path, retention: Retention, first: int) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE, retention_bytes=10 * ONE)
    for segment in log.segments:
        segment.modified = 1000.0
    delete(log.trim(10, 1005.0))
    assert log.first == 0
    log.limit(retention.apply_to(log.limits._replace(retention_bytes=0)))
    delete(log.trim(10, 1005.0))
    assert log.first == first
    log.close()


def test_what_is_held_from_a_position_on(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 10, max_bytes_per_file=3 * ONE)
    held = [log.held_from(position) for position in range(12)]
    assert held == [(10 * ONE, 4)] * 3 + [(7 * ONE, 3)] * 3 + [(4 * ONE, 2)] * 3 + [(ONE, 1)] + [(0, 0)] * 2
    log.close()
    memory = opened(None)
    assert memory.held_from(0) == (0, 0)


def test_retention_stops_a_consumed_log_from_rolling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROLL_WHEN_CONSUMED", ONE)
    log, _ = filled(tmp_path, 3, retention_bytes=3 * ONE)
    assert log.trim(3, 0.0) == []
    assert len(log.segments) == 1
    log.close()


# ---- in memory alone


def test_an_ephemeral_log_has_no_files_and_the_same_content() -> None:
    log, model = opened(None, floor=5), Model(first=5)
    for number in range(20):
        model.publish(log, [(0, [b"%d" % number, b"x"]), (9, [b"later"])])
    assert read_all(log) == model.frames
    assert log.trim(log.end, 0.0) == []
    assert read_all(log) == model.frames
    assert log.unsynced == 60
    sync = log.start_sync()
    assert synced_by(sync) == []
    assert log.finish_sync(sync) is None
    assert log.unsynced == 0
    log.close()


def test_an_ephemeral_log_keeps_what_is_needed() -> None:
    log, model = opened(None), Model()
    for number in range(30):
        model.publish(log, [(0, [b"%d" % number, b"x", b"y"])])
    needed = Ranges()
    needed.add(10, 12)
    needed.add(50, 90)
    log.keep(needed)
    kept = [*range(9, 12), *range(48, 90)]  # by whole commits
    assert [position for position in range(log.end) if log.tail.find(position) is not None] == kept
    assert log.first == 9
    for position in (10, 11, 50, 89):
        run = Cursor(log, position).read(1, EVERYTHING)
        assert run is not None
        assert run.frames == model.frame(position)
    model.publish(log, [(0, [b"more"])])
    log.keep(Ranges())
    assert (log.first, log.end, log.tail_length) == (91, 91, 0)
    model.publish(log, [(0, [b"more"])])
    run = Cursor(log, 0).read(1, EVERYTHING)
    assert run is not None
    assert run.position == 91
    log.close()


def test_an_ephemeral_log_says_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "TAIL_BYTES", 10_000)
    log = opened(None)
    for size, most in ((1, 200), (5000, 5)):  # by commits, and by bytes
        commits = 0
        while not log.overfull:
            log.add_bodies([b"x" * size], 1, 0)
            log.commit()
            commits += 1
        assert 1 < commits <= most
        log.keep(Ranges())
        assert not log.overfull


# ---- a full disk


def full_after(size: int) -> Callable[[int, kernel.Buffer], int]:
    """os.write on a disk with room for so many bytes more."""
    real, left = os.write, size

    def write(fd: int, data: kernel.Buffer) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, memoryview(data)[:left])
        left -= done
        return done

    return write


@settings(max_examples=150)
@given(st.integers(0, 2**64).map(Draw))
def test_a_full_disk_refuses_a_commit_and_nothing_else(draw: Draw) -> None:
    with directory() as path:
        limits, ids, model = draw.limits(), draw.ids(), Model()
        log = TopicLog(path, limits, ids)
        cursor = Cursor(log, 0, whatever_due=True)
        for _ in range(draw.randint(1, 10)):
            commit = draw.commit()
            if draw.random() < 0.5:
                model.publish(log, commit)
                continue
            for due, bodies in commit:
                log.add_bodies(list(bodies), 1, due)
            size = log.writer.size
            before = (log.first, log.end, log.unsynced)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "write", full_after(draw.randrange(size)))
                with pytest.raises(OSError, match="No space left"):
                    log.commit()
            assert (log.first, log.end, log.unsynced) == before
            assert (log.pending, log.writer.size) == (0, 0)
            if draw.random() < 0.3:
                cursor.read(draw.randint(1, 5), EVERYTHING)
        assert read_all(log) == model.frames
        assert len({id_of(frame) for frame in model.frames}) == len(model.frames)
        cursor.seek(0)
        frames = []
        while (run := cursor.read(3, EVERYTHING)) is not None:
            frames += split_frames(run.frames)
        assert frames == model.frames
        log.close(sync=False)
        log = TopicLog(path, limits, ids)
        assert read_all(log) == model.frames
        model.publish(log, draw.commit())
        assert read_all(log) == model.frames
        log.close(sync=False)


def test_a_write_may_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        log, model = opened(tmp_path), Model()
        model.publish(log, [(0, [b"x" * 100, b"y"])])
    model.publish(log, [(0, [b"z"])])
    assert read_all(log) == model.frames
    log.close()
    log = opened(tmp_path)
    assert read_all(log) == model.frames
    log.close()


def test_a_segment_that_cannot_be_created_refuses_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path, 3, max_bytes_per_file=3 * ONE)

    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    log.add_bodies([b"lost"], 1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            log.commit()
    assert (log.end, log.pending, len(log.segments)) == (3, 0, 1)
    model.publish(log, [(0, [b"next"])])
    assert read_all(log) == model.frames
    log.close()


def test_a_write_that_could_not_be_undone_is_undone_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path, 2)
    real_write = os.write

    def write_half(fd: int, data: bytes) -> int:
        real_write(fd, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        patch.setattr(os, "ftruncate", refuse)
        log.add_bodies([b"lost"], 1, 0)
        with pytest.raises(OSError, match="Input/output error"):
            log.commit()
    model.publish(log, [(0, [b"stored"])])
    assert read_all(log) == model.frames
    log.close()
    again = opened(tmp_path)
    assert again.end == log.end
    assert read_all(again) == model.frames
    again.close()
