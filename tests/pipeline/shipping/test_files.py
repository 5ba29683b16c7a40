from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.pipeline.shipping.files import archive_kind, is_environment, own_files, replacing


def test_the_name_tells_the_kind() -> None:
    assert [archive_kind("output", name) for name in ("a.zip", "b/a.tar", "a.tar.gz", "a.tgz")] == [
        ".zip", ".tar", ".tar.gz", ".tgz",
    ]  # fmt: skip
    assert is_environment("a.tgz")
    assert not is_environment("a.zip")
    for name in ("a.whl", "zip", ".zip", ""):
        with pytest.raises(StartError, match=r"^--ship: '.*' ends with none of \.zip, "):
            archive_kind("ship", name)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_text("old")
    with pytest.raises(StartError, match=r"--output: '.*a\.zip': is a directory"), replacing(path) as partial:
        partial.write_text("half") and tmp_path.write_text("no file")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a.zip"])
    with replacing(path) as partial:
        partial.write_text("new")
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["a.zip"])


def test_both_packages_are_shipped_and_no_bytecode() -> None:
    names = [name for name, _ in own_files()]
    assert {"nsquark/__init__.py", "nsquark/py.typed", "pyspark_nsq/__init__.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
