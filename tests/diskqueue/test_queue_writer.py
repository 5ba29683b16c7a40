"""What is written is what Go's nsqd writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.diskqueue import QueuedMessage, QueueWriter
from tests.diskqueue.queues import TIME, record, write_queue


@pytest.mark.parametrize("per_file", [1, 39, 78, 100, 1 << 20])
def test_files_and_metadata_are_those_of_gos_nsqd(tmp_path: Path, per_file: int) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    write_queue(tmp_path / "theirs", "t:c", [record(each, attempts=each) for each in range(10)], per_file)
    writer = QueueWriter(tmp_path / "ours", "t:c", per_file)
    for each in range(10):
        body = b"message %d" % each
        writer.add(QueuedMessage(TIME + each, each, b"%016x" % (0xABC0000 + each), body))
    writer.close()
    theirs, ours = (
        {each.name: each.read_bytes() for each in (tmp_path / side).iterdir()} for side in ("theirs", "ours")
    )
    assert ours == theirs
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "ours").iterdir()} == {0o600}


def test_a_queue_without_messages_has_no_files(tmp_path: Path) -> None:
    QueueWriter(tmp_path, "t", 100).close()
    assert not list(tmp_path.iterdir())
