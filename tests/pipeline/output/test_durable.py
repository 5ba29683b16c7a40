from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.pipeline.output import durable


def test_folders_change_places_with_all_they_hold(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / folder.name).touch()
    durable.exchange(one, other)
    assert [path.name for path in one.iterdir()] == ["other"]
    assert [path.name for path in other.iterdir()] == ["one"]


def test_what_is_not_there_cannot_be_exchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.exchange(tmp_path, tmp_path / "missing")


def test_whether_a_file_system_can_do_it_is_tried_without_a_trace(tmp_path: Path) -> None:
    assert durable.can_exchange(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not durable.can_exchange(tmp_path / "missing")


def test_a_text_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    durable.replace_text(path, "one")
    durable.replace_text(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
