"""A log on a disk that refuses: what is called synced is there after a power cut, whatever failed before."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import Cursor, LogReader, TopicLog, copying, syncing
from tests.log.contents import (
    EVERYTHING,
    Draw,
    Ids,
    Model,
    directory,
    read_all,
    read_what_is_left,
    segments,
    split_frames,
)
from tests.log.disk import Disk
from tests.log.test_topic_log import ONE, filled, opened


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.close()


def synced(log: TopicLog) -> int:
    return log.end - log.unsynced


def attempt(log: TopicLog) -> OSError | None:
    sync = log.start_sync()
    sync.run()
    return log.finish_sync(sync)


def after_power_cut(disk: Disk, path: Path, into: Path) -> list[bytes]:
    """What is left of the log, on a disk that works again."""
    disk.cut_power(path, into)
    disk.refuses = lambda path: False
    log = TopicLog(into, opened(None).limits, Ids())
    frames = read_what_is_left(log)
    log.close(sync=False)
    return frames


def test_a_failed_fsync_is_not_believed_when_it_works_the_next_time(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 3)
    assert attempt(log) is None
    model.publish(log, [(0, [b"lost?"])])
    disk.refuses = lambda path: True
    assert attempt(log) is not None
    assert (synced(log), log.failing) == (3, True)
    disk.refuses = lambda path: False
    model.publish(log, [(0, [b"next"])])
    assert attempt(log) is None
    assert (synced(log), log.failing) == (5, False)
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    assert read_all(log) == model.frames
    log.close()


def test_readers_go_on_while_a_segment_is_written_again(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 4, tail_messages=1)
    cursor = Cursor(log, 0)
    first = cursor.read(1, EVERYTHING)
    reader = LogReader(log, 0, 4, EVERYTHING)
    disk.refuses = lambda path: path.endswith(".log")
    assert attempt(log) is not None
    disk.refuses = lambda path: False
    assert attempt(log) is None
    model.publish(log, [(0, [b"next"])])
    frames = split_frames(first.frames) if first else []
    while (run := cursor.read(2, EVERYTHING)) is not None:
        frames += split_frames(run.frames)
    assert frames == model.frames
    reader.locate()
    assert reader.count == 4
    reader.close()
    assert read_all(log) == model.frames
    log.close()


def test_a_folder_that_could_not_be_synced_is_synced_later(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 7, max_bytes_per_file=3 * ONE)
    disk.refuses = lambda path: not path.endswith(".log")
    assert attempt(log) is not None
    assert (synced(log), log.new_file, log.failing) == (0, True, False)
    disk.refuses = lambda path: False
    disk.asked.clear()
    assert attempt(log) is None
    assert str(path) in disk.asked
    assert (synced(log), log.new_file) == (7, False)
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    log.close()


def test_a_segment_that_was_left_before_its_fsync_failed_is_written_again(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 2, max_bytes_per_file=3 * ONE)
    sync = log.start_sync()
    for number in range(5):  # the next segments are begun while the fsync is under way
        model.publish(log, [(0, [b"%010d" % number])])
    disk.refuses = lambda path: path.endswith(f"{0:020d}.log")
    sync.run()
    assert log.finish_sync(sync) is not None
    beside = log.start_sync()  # and this one works, for all that it is about
    disk.refuses = lambda path: path.endswith(".new")
    beside.run()
    assert log.finish_sync(beside) is not None
    assert synced(log) == 0
    disk.refuses = lambda path: False
    assert attempt(log) is None
    assert synced(log) == 7
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    log.close()


def test_fsyncs_beside_each_other_are_counted_once(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3)
    one = log.start_sync()
    model.publish(log, [(0, [b"more"])])
    two = log.start_sync()
    model.publish(log, [(0, [b"and more"])])
    one.run()
    two.run()
    assert log.finish_sync(two) is None
    assert synced(log) == 4
    assert log.finish_sync(one) is None
    assert synced(log) == 4
    log.close()


def test_what_the_file_has_lost_comes_from_memory(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 5)
    disk.refuses = lambda path: True
    attempt(log)
    [segment] = segments(path)
    with open(segment, "r+b") as file:  # the kernel has dropped the pages and read them again
        file.seek(2 * ONE + 50)
        file.write(bytes(10))
    disk.refuses = lambda path: False
    assert attempt(log) is None
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    log.close()


def test_what_neither_has_is_told_and_the_rest_is_kept(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, _ = filled(path, 5, tail_messages=1)
    disk.refuses = lambda path: True
    attempt(log)
    [segment] = segments(path)
    with open(segment, "r+b") as file:
        file.seek(2 * ONE + 50)
        file.write(bytes(10))
    disk.refuses = lambda path: False
    sync = log.start_sync()
    sync.run()
    error = log.finish_sync(sync)
    assert error is not None
    assert f"bytes {2 * ONE} to" in str(error)
    assert [lost for lost, _ in sync.lost] == [log.segments[0]]
    assert log.segments[0].path.stat().st_size == 5 * ONE
    assert (log.failing, synced(log)) == (False, 5)  # there is nothing more to be done about it
    log.close()


def test_damage_costs_its_batch_alone_when_the_segment_is_written_again(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 5, tail_messages=1)
    disk.refuses = lambda path: True
    attempt(log)
    [segment] = segments(path)
    damaged = bytearray(segment.read_bytes())
    damaged[2 * ONE + 50] ^= 0xFF
    segment.write_bytes(damaged)
    disk.refuses = lambda path: False
    assert attempt(log) is not None
    assert segment.read_bytes() == damaged  # nothing of it is gone before it is kept aside
    assert after_power_cut(disk, path, tmp_path / "cut") == [*model.frames[:2], *model.frames[3:]]
    log.close()


def test_a_sector_that_does_not_read_costs_no_other_when_its_segment_is_written_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    monkeypatch.setattr(copying, "SECTOR", ONE)
    log, model = filled(path, 5, tail_messages=1)
    disk.refuses = lambda path: True
    attempt(log)
    disk.refuses = lambda path: False
    pread = os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        if offset < 3 * ONE and offset + size > 2 * ONE:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, size, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        assert attempt(log) is not None
    assert after_power_cut(disk, path, tmp_path / "cut") == [*model.frames[:2], *model.frames[3:]]
    log.close()


def test_a_full_disk_leaves_the_old_segment_and_no_copy(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, model = filled(tmp_path, 5)
    disk.refuses = lambda path: True
    attempt(log)
    disk.refuses = lambda path: False
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(copying.COPY):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        error = attempt(log)
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert not list(tmp_path.glob("*" + copying.COPY))
    assert read_all(log) == model.frames
    assert attempt(log) is None
    assert log.unsynced == 0
    log.close()


def test_a_segment_may_be_deleted_before_it_is_written_again(tmp_path: Path, disk: Disk) -> None:
    log, _ = filled(tmp_path, 7, max_bytes_per_file=3 * ONE)
    disk.refuses = lambda path: path.endswith(f"{0:020d}.log")
    attempt(log)
    copying = log.start_sync()
    for segment in log.trim(7, 0.0):
        segment.delete()
    copying.run()
    log.finish_sync(copying)
    disk.refuses = lambda path: False
    assert attempt(log) is None
    assert (log.unsynced, log.failing) == (0, False)
    log.close()


def test_a_copy_of_a_deleted_topic_does_not_get_among_those_of_its_successor(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "t"
    log, _ = filled(path, 3)
    disk.refuses = lambda path: True
    attempt(log)
    disk.refuses = lambda path: False
    copying = log.start_sync()
    os.rename(path, tmp_path / "gone")
    log.close(sync=False)
    successor = opened(path, floor=3)
    copying.run()
    assert log.finish_sync(copying) is not None
    assert [each.name for each in path.iterdir()] == [successor.segments[0].path.name]
    successor.close()


def test_a_copy_that_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 3)
    log.close()
    (tmp_path / f"{0:020d}{copying.COPY}").write_bytes(b"NQB1")
    log = opened(tmp_path)
    assert read_all(log) == model.frames
    assert not list(tmp_path.glob("*" + copying.COPY))
    log.close()


def test_what_a_killed_process_left_is_synced_before_it_is_called_so(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 3)
    log.close(sync=False)
    log = opened(path)
    assert synced(log) == 0
    assert attempt(log) is None
    assert synced(log) == 3
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    log.close()


def test_what_a_killed_process_could_not_sync_is_written_again_by_the_next(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 4, max_bytes_per_file=3 * ONE)
    disk.refuses = lambda path: path.endswith(".log")
    assert attempt(log) is not None
    log.close(sync=False)
    disk.refuses = lambda path: False
    log = opened(path)  # to which the kernel shows the same pages
    model.publish(log, [(0, [b"next"])])
    assert (synced(log), log.failing) == (0, True)
    assert attempt(log) is None
    assert (synced(log), log.failing) == (5, False)
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames
    assert not list(path.glob("*" + syncing.DOUBT))
    log.close()
    log = opened(path)
    assert not log.failing
    log.close()


def test_closing_writes_again_what_could_not_be_synced(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "t"
    log, model = filled(path, 3)
    refusals = [True]
    disk.refuses = lambda path: bool(refusals) and refusals.pop()
    log.close()
    assert after_power_cut(disk, path, tmp_path / "cut") == model.frames


def test_closing_tells_when_the_disk_does_not_take_it(tmp_path: Path, disk: Disk) -> None:
    before = set(os.listdir("/proc/self/fd"))
    log, _ = filled(tmp_path, 7, max_bytes_per_file=3 * ONE)
    disk.refuses = lambda path: True
    with pytest.raises(OSError, match="Input/output"):
        log.close()
    disk.close()
    assert set(os.listdir("/proc/self/fd")) == before


@settings(max_examples=200)
@given(st.integers(0, 2**64).map(Draw))
def test_whatever_fails_what_is_synced_survives_a_power_cut_and_the_rest_a_kill(draw: Draw) -> None:
    with directory() as root, pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        path = root / "t"
        limits, ids, model = draw.limits(), Ids(), Model()
        log = TopicLog(path, limits, ids)
        cursor = Cursor(log, 0, whatever_due=True)
        under_way = []
        for step in range(draw.randint(3, 12)):
            share = draw.choice([0.0, 0.3, 1.0])
            disk.refuses = lambda path, share=share: draw.random() < share
            if draw.random() < 0.6:
                model.publish(log, draw.commit())
            if draw.random() < 0.7:
                under_way.append(log.start_sync())
            if draw.random() < 0.3:
                model.publish(log, draw.commit())
            while under_way and draw.random() < 0.7:  # one thread, in order
                sync = under_way.pop(0)
                sync.run()
                end = max((position for _, _, position in sync.files), default=0)
                if log.finish_sync(sync) is None:
                    assert synced(log) >= end
            assert split_all(cursor) == model.frames[: cursor.position]
            cursor.seek(0)
            kept = after_power_cut(disk, path, root / f"cut{step}")
            assert kept[: synced(log)] == model.frames[: synced(log)]
            shutil.copytree(path, killed := root / f"killed{step}")
            again = TopicLog(killed, limits, Ids())
            assert read_all(again) == model.frames
            again.close(sync=False)
        disk.refuses = lambda path: False
        for sync in under_way:
            sync.run()
            log.finish_sync(sync)
        log.close()
        assert after_power_cut(disk, path, root / "cut") == model.frames
        disk.close()


def split_all(cursor: Cursor) -> list[bytes]:
    frames: list[bytes] = []
    while (run := cursor.read(5, EVERYTHING)) is not None:
        frames += split_frames(run.frames)
    return frames
