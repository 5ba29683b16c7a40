"""`--import=check` reads everything, says what would happen, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.nsqd.importing import topic_import
from nsquark.nsqd.importing.report import report
from nsquark.nsqd.importing.takeover import Takeover
from tests.diskqueue.queues import record, write_metadata, write_queue

from .go_directory import fill


def everything(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_messages_and_damage_are_counted(tmp_path: Path) -> None:
    write_metadata(tmp_path, {"t": ["c"]})
    paths = write_queue(tmp_path, "t:c", [record(each) for each in range(12)], per_file=160, read=1)
    write_queue(tmp_path, "t", [record(each) for each in range(3)])
    write_queue(tmp_path, "t:lost", [record(1)])
    data = bytearray(paths[1].read_bytes())
    data[0] = 0xFF
    paths[1].write_bytes(bytes(data))
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    before = everything(tmp_path)
    assert list(report(tmp_path, 1, 1 << 20)) == [
        "note: nsqd.dat does not name t:lost, which has messages: the channel is created",
        "topic t, channel c: 9 messages with 82 bytes",
        "  damaged: 39 bytes at offset 0 of t:c.diskqueue.000001.dat: no message",
        "  damaged: 37 bytes at offset 118 of t:c.diskqueue.000002.dat: cut off by a crash",
        "topic t, channel lost: 1 messages with 9 bytes",
        "topic t, its own queue: 3 messages with 27 bytes",
        f"{tmp_path}: --import=on takes over 13 messages with 118 bytes of 1 topics, and deletes 8 files of"
        " Go's nsqd then",
    ]
    assert everything(tmp_path) == before


def test_nothing_to_import(tmp_path: Path) -> None:
    assert list(report(tmp_path, 1, 1 << 20)) == [f"{tmp_path}: there is nothing of Go's nsqd to import"]


def test_an_import_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setattr(topic_import, "BATCH", 100)
    takeover = Takeover(tmp_path, 1, 1 << 20, 1 << 20)
    takeover.stop()
    assert not takeover.run()
    assert next(report(tmp_path, 1, 1 << 20)).endswith("was interrupted; the next start goes on with it")
    write_queue(tmp_path, "new", [record(1)])
    assert next(report(tmp_path, 1, 1 << 20)).endswith("begins anew, as files have changed")
    monkeypatch.setattr(Takeover, "_install", lambda self, state: None)
    assert Takeover(tmp_path, 1, 1 << 20, 1 << 20).run()
    assert next(report(tmp_path, 1, 1 << 20)).endswith("the next start moves 3 topics to their place")


def test_the_flag_prints_it_and_nsqd_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    before = everything(tmp_path)
    command = [sys.executable, "-m", "nsquark.nsqd", f"--data-path={tmp_path}", "--import=check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "topic orders, channel mail: 57 messages with " in done.stdout
    assert everything(tmp_path) == before
