from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsquark.tools.nsq_to_file.archive_file import ArchiveFile
from nsquark.tools.nsq_to_file.encoding import Plain
from nsquark.tools.nsq_to_file.file_name import FileNames
from nsquark.tools.nsq_to_file.leftovers import move_leftovers
from nsquark.tools.nsq_to_file.rotation import ArchiveSettings
from tests.tools.nsq_to_file.archiver import files

NAMES = FileNames.of("<TOPIC>/t<REV>.<DATETIME>.log", "%H", topic="t", with_revisions=True)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "t").mkdir(parents=True)
    return tmp_path / "work"


def recover(work: Path) -> dict[str, bytes]:
    out = work.parent / "out"
    move_leftovers("[t/c]", NAMES, ArchiveSettings(str(out), str(work), Plain))
    return files(out)


def test_files_of_any_hour_are_moved_and_a_torn_line_is_ended(work: Path) -> None:
    (work / "t" / "t-000000.11.log").write_bytes(b"a\n")
    (work / "t" / "t-000004.12.log").write_bytes(b"b\nto")
    assert recover(work) == {"t/t-000000.11.log": b"a\n", "t/t-000004.12.log": b"b\nto\n"}
    assert files(work) == {}


def test_another_topic_s_files_and_foreign_ones_stay(work: Path) -> None:
    (work / "t" / "notes.txt").write_bytes(b"a")
    (work / "u").mkdir()
    (work / "u" / "t-000000.11.log").write_bytes(b"a")
    assert recover(work) == {}
    assert len(files(work)) == 2


def test_a_file_that_is_written_to_stays(work: Path) -> None:
    file = ArchiveFile(str(work / "t" / "t-000000.11.log"), Plain(), exclusive=True)
    file.write([b"a"])
    assert recover(work) == {}
    file.close()
    assert recover(work) == {"t/t-000000.11.log": b"a\n"}


def test_nothing_is_overwritten(work: Path) -> None:
    (work / "t" / "t-000000.11.log").write_bytes(b"a\n")
    out = work.parent / "out" / "t"
    out.mkdir(parents=True)
    (out / "t-000000.11.log").write_bytes(b"old\n")
    assert recover(work) == {"t/t-000000.11.log": b"old\n", "t/t-000001.11.log": b"a\n"}


def test_what_a_kill_has_left_half_moved_is_not_archived_twice(work: Path) -> None:
    source = work / "t" / "t-000000.11.log"
    source.write_bytes(b"a\n")
    out = work.parent / "out" / "t"
    out.mkdir(parents=True)
    os.link(source, out / source.name)
    assert recover(work) == {"t/t-000000.11.log": b"a\n"}
    assert files(work) == {}


def test_an_empty_file_is_removed(work: Path) -> None:
    (work / "t" / "t-000000.11.log").write_bytes(b"")
    assert recover(work) == {}
    assert files(work) == {}


def test_no_work_directory_yet_is_no_failure(tmp_path: Path) -> None:
    assert recover(tmp_path / "none") == {}


def test_an_output_directory_below_the_work_directory_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "done"
    out.mkdir()
    (out / "t-000000.log").write_bytes(b"a\n")
    names = FileNames.of("<DATETIME>/t<REV>.log", "%H", topic="t", with_revisions=True)
    move_leftovers("[t/c]", names, ArchiveSettings(str(out), str(tmp_path), Plain))
    assert files(out) == {"t-000000.log": b"a\n"}
