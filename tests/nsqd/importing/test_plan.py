"""What a plan finds in a directory."""

from __future__ import annotations

from pathlib import Path

from nsquark.nsqd.importing.plan import make_plan
from tests.diskqueue.queues import record, write_metadata, write_queue


def test_topics_with_their_channels_and_queues(tmp_path: Path) -> None:
    write_metadata(tmp_path, {"t": ["b", "a"], "quiet": ["c"]})
    for name in ("t", "t:a", "t:z", "u:c"):
        write_queue(tmp_path, name, [record(1)])
    write_queue(tmp_path, "quiet:c", [record(1)], read=1)
    plan = make_plan(tmp_path, 1)
    assert [
        (each.name, each.channels, [queue.name for queue in each.all_queues], each.unread_bytes())
        for each in plan.topics
    ] == [("t", ["b", "a", "z"], ["t:a", "t:z", "t"], 117), ("u", ["c"], ["u:c"], 39)]
    assert [each.name for each in plan.orphans] == ["t:z", "u:c"]
    assert len(plan.originals) == 10
    assert not plan.renames_metadata
    assert not plan.empty


def test_a_directory_of_nsquark_alone_has_nothing_to_import(tmp_path: Path) -> None:
    (tmp_path / "topics" / "t").mkdir(parents=True)
    write_metadata(tmp_path, {"t": ["c"]}, "nsqd.1.dat")
    assert make_plan(tmp_path, 1).empty
