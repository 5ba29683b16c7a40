"""The folder of segments that came back from the archive, whatever becomes of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nsquark.errors import ArchiveAway
from nsquark.log import Archived, Segment
from nsquark.nsqd.archive.fetched_segments import FOLDER, FetchedSegments

DATA = b"x" * 100


def write(key: str, size: int, crc: int, fd: int) -> None:
    os.write(fd, DATA)


def segment_of(number: int, fetched: FetchedSegments) -> Segment:
    key = f"node/topic/epoch/{number}"
    archived = Archived(key, "0.log", number, number + 1, 0, len(DATA), 0, 0, 0.0, ((number, 0),))
    return Segment.of_archive(archived, fetched)


def test_what_a_hand_has_deleted_or_cut_short_is_fetched_again(tmp_path: Path) -> None:
    fetched = FetchedSegments(tmp_path, 1000, write)
    segment = segment_of(0, fetched)
    segment.verify()
    segment.path.unlink()
    segment.verify()
    assert segment.path.read_bytes() == DATA
    segment.path.write_bytes(DATA[:10])
    segment.verify()
    assert segment.path.read_bytes() == DATA
    segment.path.unlink()
    segment.path.parent.rmdir()
    segment.verify()
    assert segment.path.read_bytes() == DATA
    assert fetched.size == len(DATA)


def test_a_start_empties_the_folder_also_where_it_is_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "another disk"
    (elsewhere / "folder").mkdir(parents=True)
    (elsewhere / "folder" / "file").write_bytes(DATA)
    (elsewhere / "node@topic").write_bytes(DATA)
    (tmp_path / FOLDER).symlink_to(elsewhere)
    FetchedSegments(tmp_path, 1000, write)
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / FOLDER).is_symlink()


def test_a_full_disk_gets_the_room_of_all_others_and_says_so(tmp_path: Path) -> None:
    full = False

    def get(key: str, size: int, crc: int, fd: int) -> None:
        write(key, size, crc, fd)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fetched = FetchedSegments(tmp_path, 1000, get)
    for number in range(3):
        segment_of(number, fetched).verify()
    full = True
    with pytest.raises(ArchiveAway, match=r"epoch/3 cannot be kept in .*fetched: No space left on device"):
        segment_of(3, fetched).verify()
    assert list((tmp_path / FOLDER).iterdir()) == []
    assert fetched.size == 0
    full = False
    segment_of(3, fetched).verify()
    assert fetched.size == len(DATA)
