"""What a member keeps beside its data, over its starts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.automaton.group import member_of
from nsquark.nsqd.replica.member.member_file import MemberFile, place_of

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


def test_a_directory_belongs_to_the_group_once_it_has_led_or_followed_and_a_copy_does_not(
    tmp_path: Path,
) -> None:
    """A new one, or a backup, must not lead by itself in the place of what was lost."""
    first = start(tmp_path / "a")
    assert not first.directory().belongs
    assert not start(tmp_path / "a").directory().belongs
    first.settle(False)
    assert not first.directory().belongs
    first.settle(True, 1)
    first.stop_cleanly()
    assert start(tmp_path / "a").directory().belongs
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert not start(tmp_path / "b").directory().belongs
    assert not start(tmp_path / "b").directory().belongs


def test_a_file_of_an_older_release_belongs_if_it_has_a_term(tmp_path: Path) -> None:
    first = start(tmp_path)
    for term in (0, 3):
        known = json.loads(first.path.read_bytes())
        known.pop("belongs")
        first.path.write_text(json.dumps(known | {"term": term}))  # the same file, at the same place
        assert start(tmp_path).directory().belongs == (term > 0)


def test_a_directory_is_torn_from_a_power_loss_until_it_has_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not start(tmp_path).stored.torn
    assert not start(tmp_path).stored.torn  # after a kill
    start(tmp_path).stop_cleanly()
    monkeypatch.setattr("nsquark.nsqd.replica.member.member_file.boot_id", lambda: "the second boot")
    assert not start(tmp_path).stored.torn
    monkeypatch.setattr("nsquark.nsqd.replica.member.member_file.boot_id", lambda: "the third boot")
    assert start(tmp_path).stored.torn
    again = start(tmp_path)
    assert again.stored.torn
    again.settle(False)
    assert again.stored.torn
    again.settle(True)
    assert not start(tmp_path).stored.torn


def the_id_of_the_file_system_is_the_number_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on XFS."""
    ask = os.statvfs

    def statvfs(fd: int) -> SimpleNamespace:
        assert ask(fd)
        device = os.fstat(fd).st_dev
        return SimpleNamespace(f_fsid=os.minor(device) & 0xFF | os.major(device) << 8)

    monkeypatch.setattr(os, "statvfs", statvfs)


def test_a_device_that_gets_another_number_has_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_id_of_the_file_system_is_the_number_of_its_device(monkeypatch)
    first = start(tmp_path / "a")
    if not place_of(first.path).startswith("generation"):
        pytest.skip("this file system knows no generations of inodes")
    assert start(tmp_path / "a").stored.incarnation == first.stored.incarnation
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert place_of(tmp_path / "b" / "nsquark.member") != place_of(first.path)
    assert start(tmp_path / "b").stored.incarnation != first.stored.incarnation
