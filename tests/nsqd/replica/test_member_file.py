"""What a member keeps beside its data, over its starts."""

from __future__ import annotations

from pathlib import Path

from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.group import member_of
from nsquark.nsqd.replica.member_file import MemberFile

PATH = "topics/t/0.log"


def start(directory: Path, ack: str = "written") -> MemberFile:
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
    """Nobody else may be able to lead. It stores the files anew before it leads again."""
    first = start(tmp_path)
    first.doubt([PATH])
    first.doubt(["topics/t/1.log"])
    second = start(tmp_path)
    assert second.stored.incarnation == first.stored.incarnation
    assert second.stored.doubtful == (PATH, "topics/t/1.log")
    assert second.directory().settled
