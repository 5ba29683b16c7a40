"""A file is replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.spark import durable


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        durable.replace_file(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    durable.replace_file(path, b"old")

    def fail(_: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        durable.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
