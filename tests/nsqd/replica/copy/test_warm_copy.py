"""Operations that do not fit the copy, and bringing very many files to the disk."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from nsquark.nsqd.replica.changes.frames import CREATE, CUT, Frame, Operation
from nsquark.nsqd.replica.copy.warm_copy import CopyDiffers, FsyncFailed, WarmCopy, sync

PATH = "topics/t/1.log"


@pytest.fixture
def copy(tmp_path: Path) -> WarmCopy:
    (tmp_path / PATH).parent.mkdir(parents=True)
    (tmp_path / PATH).write_bytes(b"12345")
    return WarmCopy(tmp_path)


def cut(offset: int) -> Frame:
    return Frame(1, 1, [Operation(CUT, PATH, offset)])


@pytest.mark.parametrize("offset", [6, (1 << 64) - 1])
def test_cutting_a_file_never_makes_it_longer(copy: WarmCopy, offset: int) -> None:
    with pytest.raises(CopyDiffers, match="has 5 bytes"):
        copy.apply(cut(offset), lenient=False)
    copy.apply(cut(offset), lenient=True)  # it was cut further since
    assert (copy.directory / PATH).read_bytes() == b"12345"


def test_a_file_is_cut(copy: WarmCopy) -> None:
    copy.apply(cut(5), lenient=False)
    copy.apply(cut(2), lenient=False)
    assert (copy.directory / PATH).read_bytes() == b"12"


def test_more_files_than_descriptors_are_synced(copy: WarmCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    real = os.fsync

    def noted(fd: int) -> None:
        status = os.fstat(fd)
        synced.add((status.st_dev, status.st_ino))
        real(fd)

    monkeypatch.setattr(os, "fsync", noted)
    paths = [f"topics/t{number}/1.log" for number in range(400)]
    copy.apply(Frame(1, 1, [Operation(CREATE, path) for path in paths]), lenient=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 300, hard))
    try:
        sync(copy.start_sync())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for path in paths:
        for each in (copy.directory / path, (copy.directory / path).parent):
            assert (each.stat().st_dev, each.stat().st_ino) in synced
    assert not copy.changed


def test_a_failed_fsync_of_very_many_files_puts_all_of_them_in_doubt(
    copy: WarmCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"topics/t/{number}.log" for number in range(400)]
    copy.apply(Frame(1, 1, [Operation(CREATE, path) for path in paths]), lenient=False)

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FsyncFailed) as failed:
        sync(copy.start_sync())
    assert failed.value.paths == frozenset(paths)
