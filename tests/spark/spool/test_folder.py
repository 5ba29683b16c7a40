"""The spool: numbered messages, known ids, acknowledged files, and one writer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.spark.errors import BadResponse, ChannelInUse
from nsquark.spark.spool.folder import KEEP_SECONDS, Spool, list_files, read_file


@dataclass
class Message:
    id: bytes
    body: bytes
    attempts: int = 1
    timestamp_ns: int = 1_700_000_000_000_000_000


def messages(*numbers: int, attempts: int = 1) -> list[Message]:
    return [Message(b"%016x" % number, b"body %d" % number, attempts) for number in numbers]


def test_messages_are_numbered_over_restarts(tmp_path: Path) -> None:
    for first in (0, 3):
        spool = Spool(tmp_path)
        assert spool.end == first
        spool.add("t", "h:4150", messages(first, first + 1, first + 2))
        spool.close()
    files = list_files(tmp_path)
    assert [(file.first, file.end) for file in files] == [(0, 3), (3, 6)]
    topic, nsqd, batch = read_file(files[1].path)
    assert (topic, nsqd) == ("t", "h:4150")
    _, bodies, _, _ = kernel.decode_batches(batch, 3, 3, True, False, False)
    assert bytes(bodies) == b"body 3body 4body 5"


def test_a_message_that_is_delivered_again_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.add("t", "h:4150", messages(0, 1))
    spool.add("t", "h:4150", messages(0, 1, attempts=2))
    assert spool.end == 2
    spool.add("t", "h:4150", messages(1, 2, attempts=2))
    spool.add("t", "other:4150", messages(1, attempts=2))  # ids of another nsqd are other ids
    assert spool.end == 4
    spool.close()


def test_acknowledged_files_are_deleted_when_they_are_old(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(3):
        spool.add("t", "h:4150", messages(number))
    old = time.time() - KEEP_SECONDS - 1
    for file in list_files(tmp_path)[:2]:
        os.utime(file.path, (old, old))
    spool.acknowledge(1)
    assert [file.first for file in list_files(tmp_path)] == [1, 2]
    spool.acknowledge(3)
    assert [file.first for file in list_files(tmp_path)] == [2]  # it tells the next number
    spool.close()
    again = Spool(tmp_path)
    assert (again.acknowledged, again.end) == (3, 3)
    again.close()


def test_incomplete_files_are_deleted_at_the_start(tmp_path: Path) -> None:
    for name in ("00000000000000000000-1.messages.new", "00000000000000000000-1.tmp"):
        (tmp_path / name).write_bytes(b"half")
    spool = Spool(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
    assert spool.end == 0
    spool.close()


def test_one_process_writes(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ChannelInUse, match=r"option 'stagingDirectory': .* is in use by another query"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000-1.messages"
    path.write_bytes(b"not JSON\n")
    with pytest.raises(BadResponse, match="is not what was written there"):
        read_file(path)
