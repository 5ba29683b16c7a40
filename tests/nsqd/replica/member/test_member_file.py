"""What a member keeps beside its data, over its starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.automaton.group import member_of
from nsquark.nsqd.replica.member.member_file import MemberFile

PATH = "topics/t/0.log"


def start(directory: Path, ack: str = "written") -> MemberFile:
    directory.mkdir(exist_ok=True)
    return MemberFile.open(
        Options(data_path=str(directory), replica_group="g", replica_member="a", replica_ack=ack)
    )


def test_a_start_after_another_keeps_the_incarnation(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert start(tmp_path).stored.incarnation == first.stored.incarnation


def test_a_standby_whose_fsync_failed_is_another_incarnation_until_it_has_fetched_its_files(
    tmp_path: Path,
) -> None:
    first = start(tmp_path, "synced")
    before = first.stored.incarnation
    first.distrust([PATH])
    second = start(tmp_path, "synced")
    assert second.stored.incarnation == first.stored.incarnation != before
    assert member_of(second.stored.incarnation) == "a"
    assert not second.directory().settled
    assert second.stored.doubtful == (PATH,)
    second.settle(True)
    assert start(tmp_path, "synced").stored.doubtful == ()


def test_a_primary_whose_fsync_failed_keeps_its_incarnation_and_knows_its_files(tmp_path: Path) -> None:
    """No other member may be able to lead. It stores the files anew before it leads again."""
    first = start(tmp_path)
    first.doubt([PATH])
    first.doubt(["topics/t/1.log"])
    second = start(tmp_path)
    assert second.stored.incarnation == first.stored.incarnation
    assert second.stored.doubtful == (PATH, "topics/t/1.log")
    assert second.directory().settled


@pytest.mark.parametrize("clean", [False, True])
def test_a_copied_directory_is_another_incarnation(tmp_path: Path, clean: bool) -> None:
    """The directory that it was copied from may go on: one incarnation would count for two."""
    first = start(tmp_path / "a", "synced")
    if clean:
        first.stop_cleanly()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied, original = start(tmp_path / "b", "synced"), start(tmp_path / "a", "synced")
    assert original.stored.incarnation == first.stored.incarnation
    assert copied.stored.incarnation != first.stored.incarnation
    assert copied.directory().settled == clean  # files that change while they are copied do not fit together
    assert start(tmp_path / "b", "synced").stored.incarnation == copied.stored.incarnation


def test_a_renamed_directory_keeps_its_incarnation(tmp_path: Path) -> None:
    first = start(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert start(tmp_path / "b").stored.incarnation == first.stored.incarnation
