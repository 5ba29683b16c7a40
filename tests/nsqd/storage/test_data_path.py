import os
from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.nsqd.storage.data_path import lock_data_path

FAILED = "failed to instantiate nsqd - failed to lock data-path:"


def test_a_second_lock_is_refused_until_the_first_is_given_up(tmp_path: Path) -> None:
    fd = lock_data_path(str(tmp_path))
    with pytest.raises(StartError) as caught:
        lock_data_path(str(tmp_path))
    assert str(caught.value) == (
        f"{FAILED} cannot flock directory {tmp_path} - resource temporarily unavailable"
        " (possibly in use by another instance of nsqd)"
    )
    os.close(fd)
    os.close(lock_data_path(str(tmp_path)))


def test_the_lock_leaves_no_file_and_is_not_inherited(tmp_path: Path) -> None:
    fd = lock_data_path(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nope"
    with pytest.raises(StartError) as caught:
        lock_data_path(str(path))
    assert str(caught.value) == f"{FAILED} open {path}: no such file or directory"
    assert caught.value.status == 1


def test_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StartError) as caught:
        lock_data_path(str(path))
    assert str(caught.value) == f"{FAILED} open {path}: not a directory"


def test_no_path_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fd = lock_data_path("")
    with pytest.raises(StartError, match=f"cannot flock directory {tmp_path} - "):
        lock_data_path("")
    os.close(fd)
