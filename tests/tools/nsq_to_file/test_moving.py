from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.tools.nsq_to_file.errors import DiskError
from nsquark.tools.nsq_to_file.moving import is_moved, move


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    if directory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no other file system")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=["here", "elsewhere"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    directory = tmp_path / "out" if request.param == "here" else request.getfixturevalue("elsewhere")
    assert isinstance(directory, Path)
    return directory / "d" / "a.log"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "a.log"
    path.parent.mkdir()
    path.write_bytes(b"line\n" * 1000)
    os.utime(path, (1, 1))
    return path


def test_a_file_is_moved_with_its_time(source: Path, target: Path) -> None:
    move(str(source), str(target))
    assert not source.exists()
    assert target.read_bytes() == b"line\n" * 1000
    assert target.stat().st_mtime == 1
    assert os.listdir(target.parent) == ["a.log"]


def test_nothing_is_overwritten(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        move(str(source), str(target))
    assert target.read_bytes() == b"old"
    assert source.exists()
    assert os.listdir(target.parent) == ["a.log"]


def test_a_part_that_a_kill_has_left_is_no_hindrance(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True)
    part = target.parent / ".a.log.part"
    part.write_bytes(b"x" * 9999)
    move(str(source), str(target))
    assert target.read_bytes() == b"line\n" * 1000


def test_a_file_that_cannot_be_moved_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"no directory")
    with pytest.raises(DiskError, match="not a directory"):
        move(str(source), str(tmp_path / "out" / "a.log"))
    assert source.exists()


def test_what_was_moved_and_not_removed_is_known(source: Path, target: Path, tmp_path: Path) -> None:
    assert not is_moved(str(source), str(target))
    target.parent.mkdir(parents=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    assert is_moved(str(source), str(target))
    target.unlink()
    target.write_bytes(b"lime\n" * 1000)
    assert not is_moved(str(source), str(target))
