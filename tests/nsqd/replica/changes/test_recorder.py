"""The primary's recorder: changes become frames without gaps, whichever thread makes them."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import pytest

from nsquark.nsqd.replica.changes.frames import (
    APPEND,
    BATCHES,
    FrameParser,
    Operation,
    PackedFrame,
    PackedOperation,
)
from nsquark.nsqd.replica.changes.recorder import Recorder


class Follower:
    """Keeps the frames with changes that it is sent."""

    def __init__(self) -> None:
        self.written = 0
        self.unsent = 0
        self.sequences: list[int] = []
        self.operations: list[Operation] = []
        self._parser = FrameParser()

    def send(self, frame: PackedFrame) -> None:
        for each in self._parser.feed(b"".join(frame.parts)):
            if each.operations:
                self.sequences.append(each.sequence)
                self.operations += each.operations

    def close(self) -> None:
        pass

    def look(self) -> None:
        pass


class InterruptedQueue(deque[PackedOperation]):
    """The event loop's thread flushes before each operation that another thread adds, and after it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def append(self, operation: PackedOperation) -> None:
        self._recorder.flush()
        super().append(operation)
        self._recorder.flush()


@pytest.fixture
async def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path, 1, asyncio.get_running_loop())


async def test_a_flush_in_the_middle_of_a_change_leaves_no_gap(recorder: Recorder, tmp_path: Path) -> None:
    follower = Follower()
    flushed: list[int] = []
    recorder.record_always(flushed.append, touched=True)
    recorder.want()
    recorder.followers.add(follower)
    recorder._operations = InterruptedQueue(recorder)
    try:
        for number in range(3):
            recorder.put(tmp_path / "topics" / "orders" / f"{number}.log", b"data")
        recorder.flush()
    finally:
        recorder.close()
    assert follower.sequences == [1, 2, 3]
    assert recorder.sequence == flushed[-1] == 3


async def test_a_file_is_to_be_synced_before_its_change_is_sent(recorder: Recorder, tmp_path: Path) -> None:
    touched: list[set[str]] = []
    recorder.record_always(lambda sequence: touched.append(set(recorder.touched or ())), touched=True)
    recorder.want()
    recorder._operations = InterruptedQueue(recorder)
    try:
        recorder.put(tmp_path / "topics" / "orders" / "0.log", b"data")
    finally:
        recorder.close()
    assert touched[-1] == {"topics/orders/0.log"}


async def test_changes_that_nobody_wants_are_counted(recorder: Recorder, tmp_path: Path) -> None:
    recorder.record_always(lambda sequence: None, touched=False)
    try:
        recorder.appended(tmp_path / "topics" / "orders" / "0.log", 0, b"data")
        recorder.flush()
        recorder.flush()
        assert recorder.sequence == 1
    finally:
        recorder.close()


async def test_what_nobody_waits_for_goes_with_what_somebody_waits_for(
    recorder: Recorder, tmp_path: Path
) -> None:
    follower, woken = Follower(), 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    recorder.record_always(lambda sequence: None, touched=False, wake=wake)
    recorder.want()
    recorder.followers.add(follower)
    try:
        recorder.appended(tmp_path / "topics" / "orders" / "0.journal", 0, b"fin")
        recorder.flush_if_changed()
        assert follower.sequences == []
        recorder.appended(tmp_path / "topics" / "orders" / "0.journal", 3, b"new channel")
        recorder.schedule()
        recorder.flush_if_changed()
    finally:
        recorder.close()
    assert follower.sequences == [1]
    assert [each.offset for each in follower.operations] == [0, 3]
    assert woken == 2  # once for each of the two kinds


async def test_what_nobody_waits_for_is_sent_soon_all_the_same(recorder: Recorder, tmp_path: Path) -> None:
    follower, flushed = Follower(), asyncio.Event()
    recorder.record_always(lambda sequence: flushed.set(), touched=False, wake=lambda: None)
    recorder.want()
    recorder.followers.add(follower)
    try:
        recorder.appended(tmp_path / "topics" / "orders" / "0.journal", 0, b"fin")
        recorder.flush_if_changed()
        recorder.flush_if_changed()
        async with asyncio.timeout(30):
            await flushed.wait()
    finally:
        recorder.close()
    assert follower.sequences == [1]


async def test_a_log_grows_by_batches_and_a_journal_by_bytes(recorder: Recorder, tmp_path: Path) -> None:
    follower = Follower()
    recorder.want()
    recorder.followers.add(follower)
    try:
        for name in ("0.log", "0.journal", "0.log"):
            recorder.appended(tmp_path / "topics" / "orders" / name, 0, b"data")
        recorder.appended(tmp_path / "nsquark.member", 0, b"is not copied")
        recorder.flush()
    finally:
        recorder.close()
    told = [(each.letter, each.path) for each in follower.operations]
    assert told == [
        (BATCHES, "topics/orders/0.log"),
        (APPEND, "topics/orders/0.journal"),
        (BATCHES, "topics/orders/0.log"),
    ]
