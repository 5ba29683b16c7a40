"""`nsquark export`: what is unfinished, as Go's nsqd keeps it. tests/compat opens it with Go's nsqd."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nsquark.data_path.export import ExportFailed, export
from nsquark.diskqueue import QueueReader, Unreadable, find_queues
from nsquark.nsqd.storage.data_path import lock_data_path
from nsquark.nsqd.storage.inspection import DataRefused
from tests.diskqueue.queues import record, write_queue
from tests.nsqd.importing.go_directory import contents, fill, in_order, take_over


def read(path: Path) -> dict[str, list[tuple[bytes, int]]]:
    def tell(path: Path, what: Unreadable) -> None:
        raise AssertionError((path, what))

    found = {}
    for queue in find_queues(path):
        reader = QueueReader(queue, 1 << 20, tell)
        messages = []
        while reader.head is not None:
            messages.append((reader.head.body, reader.head.attempts))
            reader.advance()
        assert queue.meta is not None
        assert queue.meta.depth == len(messages)
        found[queue.name] = messages
    return found


def test_what_was_imported_is_exported(tmp_path: Path) -> None:
    expected = fill(tmp_path / "data")
    take_over(tmp_path / "data")
    result = export(tmp_path / "data", tmp_path / "back", 500)
    assert in_order(read(tmp_path / "back")) == in_order(expected)
    assert result.messages == sum(map(len, expected.values()))
    assert (result.topics, result.deferred, result.lost, result.staged) == (3, 0, 0, False)
    assert max(each.stat().st_size for each in (tmp_path / "back").iterdir()) <= 500
    # And imported again.
    take_over(tmp_path / "back")
    assert in_order(contents(tmp_path / "back")) == in_order(expected)


def test_what_a_real_nsqd_has_left_is_exported(data_path: Path, tmp_path: Path) -> None:
    before = {each: each.read_bytes() for each in data_path.rglob("*") if each.is_file()}
    result = export(data_path, tmp_path / "back")
    found = read(tmp_path / "back")
    assert {name: len(each) for name, each in found.items()} == result.queues
    assert result.queues == {"orders:archive": 201, "orders:billing": 151, "idle": 5}
    assert sum(attempts for _, attempts in found["orders:billing"]) >= 100
    assert (result.deferred, result.staged, result.largest) == (2, True, 74)
    known = json.loads((tmp_path / "back" / "nsqd.dat").read_text())
    assert {each["name"]: each["channels"] for each in known["topics"]} == {
        "orders": [{"name": "archive", "paused": False}, {"name": "billing", "paused": False}],
        "idle": None,
    }
    assert {each: each.read_bytes() for each in data_path.rglob("*") if each.is_file()} == before


def test_ids_and_times_are_kept(data_path: Path, tmp_path: Path) -> None:
    from nsquark.data_path.dump import messages

    export(data_path, tmp_path / "back")
    (queue,) = [each for each in find_queues(tmp_path / "back") if each.name == "idle"]
    reader = QueueReader(queue, 1 << 20, lambda path, what: None)
    for message in messages(data_path / "topics" / "idle"):
        assert reader.head is not None
        assert (reader.head.timestamp_ns, reader.head.id) == (message.timestamp_ns, message.id.encode())
        reader.advance()


def test_a_node_that_runs_is_refused(data_path: Path, tmp_path: Path) -> None:
    import os

    fd = lock_data_path(str(data_path))
    try:
        with pytest.raises(ExportFailed, match="stop it before an export"):
            export(data_path, tmp_path / "back")
    finally:
        os.close(fd)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]


def test_a_target_that_is_there_is_refused(data_path: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "file").touch()
    with pytest.raises(ExportFailed, match="exists already"):
        export(data_path, tmp_path / "back")
    with pytest.raises(ExportFailed, match="lies within"):
        export(data_path, data_path / "back")
    (tmp_path / "other.partial").mkdir()
    with pytest.raises(ExportFailed, match="delete it first"):
        export(data_path, tmp_path / "other")


def test_messages_that_are_not_imported_yet_are_refused(data_path: Path, tmp_path: Path) -> None:
    write_queue(data_path, "orders", [record(1)])
    with pytest.raises(DataRefused, match="not imported"):
        export(data_path, tmp_path / "back")
    (data_path / "nsquark.import").mkdir()
    with pytest.raises(ExportFailed, match="start nsqd once"):
        export(data_path, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_export_that_fails_leaves_nothing(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nsquark.diskqueue.queue_writer.write_all", refuse)
    with pytest.raises(OSError, match="No space left"):
        export(data_path, tmp_path / "back")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]


def test_topics_without_files_go_along(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    take_over(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "topics")
    (tmp_path / "data" / "topics").mkdir()
    export(tmp_path / "data", tmp_path / "back")
    assert [each.name for each in (tmp_path / "back").iterdir()] == ["nsqd.dat"]
