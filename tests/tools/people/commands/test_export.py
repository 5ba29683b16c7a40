"""`nsquark export` as a process."""

from __future__ import annotations

import json
from pathlib import Path

from tests.diskqueue.queues import record, write_metadata, write_queue
from tests.nsqd.importing.go_directory import take_over
from tests.tools.people.command import failure, nsquark, output


def made(path: Path, size: int = 9) -> Path:
    path.mkdir()
    write_metadata(path, {"t": ["c"]})
    write_queue(path, "t:c", [record(each, bytes(size)) for each in range(3)])
    take_over(path)
    return path


def test_what_is_written_is_said(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    text = output("export", str(data), str(tmp_path / "back"))
    assert text == f"{tmp_path / 'back'}: 1 topics, 3 messages in 1 disk queues\n"
    found = json.loads(output("export", "--json", str(data), str(tmp_path / "again")))
    assert (found["queues"], found["messages"], found["lost"]) == ({"t:c": 3}, 3, 0)


def test_a_message_that_gos_nsqd_refuses_by_default_is_told(tmp_path: Path) -> None:
    data = made(tmp_path / "data", (1 << 20) + 1)
    done = nsquark("export", str(data), str(tmp_path / "back"), "--max-bytes-per-file=1000")
    assert done.returncode == 0
    assert "--max-msg-size" in done.stderr
    assert len(list((tmp_path / "back").glob("t:c.diskqueue.0*.dat"))) == 3


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    assert "holds no data of nsqd" in failure("export", str(tmp_path), str(tmp_path / "back"))
