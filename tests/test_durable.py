"""A file is replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.durable import replace_file


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        replace_file(path, data, path.with_suffix(".new"))
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", path.with_suffix(".new"))

    def fail(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new", path.with_suffix(".new"))
    assert path.read_bytes() == b"old"
