"""Reading in threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from nsquark.errors import ArchiveAway, ConnectionLost
from nsquark.http.server.departure import Departure
from nsquark.log import Archived, Segment
from nsquark.nsqd.storage import disk_reads
from nsquark.nsqd.storage.disk_reads import DiskReads


async def test_a_file_is_looked_into_once_and_everybody_is_told_once(tmp_path: Path) -> None:
    reads = DiskReads(asyncio.get_running_loop())
    segment = Segment(tmp_path, 0)
    segment.path.write_bytes(b"")
    told: list[tuple[str, OSError | None]] = []
    for name in ("a", "a", "b", "a"):
        reads.index(segment, name, lambda error, name=name: told.append((name, error)))  # type: ignore[misc]
    await reads.run(lambda: None)
    while len(told) < 2:  # noqa: ASYNC110 - a turn or two
        await asyncio.sleep(0)
    assert sorted(name for name, _ in told) == ["a", "b"]
    segment.path.unlink()
    failed = asyncio.get_running_loop().create_future()
    reads.index(segment, "c", failed.set_result)
    assert isinstance(await failed, FileNotFoundError)
    reads.close()


async def test_who_is_cancelled_waits_for_the_thread(tmp_path: Path) -> None:
    reads = DiskReads(asyncio.get_running_loop())
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    ended: list[str] = []

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(20)
        ended.append("thread")

    async def waits() -> None:
        try:
            await reads.run(work)
        finally:
            ended.append("task")

    task = asyncio.create_task(waits())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert ended == []
    go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended == ["thread", "task"]
    reads.close()


class HangingStore:
    """Implements `nsquark.log.Store`, and gives nothing back until `go_on` is set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.go_on = threading.Event()
        self.begun: list[Segment] = []

    def segment(self, number: int = 0) -> Segment:
        """One that is only here."""
        return Segment.of_archive(
            Archived(f"n/t/e/{number}", "0.log", 0, 1, 0, 9, 0, 0, 0.0, ((0, 0),)), self
        )

    def path_of(self, archived: Archived) -> Path:
        return self.path / "fetched"

    def fetch(self, segment: Segment) -> None:
        self.begun.append(segment)
        self.go_on.wait(20)

    def forget(self, archived: Archived) -> None:
        pass


async def test_a_request_that_waits_no_longer_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reads, "FETCH_TIMEOUT", 0.001)
    reads = DiskReads(asyncio.get_running_loop())
    store = HangingStore(tmp_path)
    segment = store.segment()
    departure = Departure()
    for _ in range(3):
        with pytest.raises(ArchiveAway, match="nothing has come"):
            await reads.fetch(segment)
        with pytest.raises(ArchiveAway, match="nothing has come"):
            await reads.fetch(segment, departure.wait)
    monkeypatch.setattr(disk_reads, "FETCH_TIMEOUT", 60.0)
    waiting = [asyncio.create_task(reads.fetch(segment, departure.wait))]
    await asyncio.sleep(0)
    departure.tell()
    waiting.append(asyncio.create_task(reads.fetch(segment, departure.wait)))
    for each in waiting:
        with pytest.raises(ConnectionLost):
            await each
    assert reads._indexing == {segment: {}}
    assert reads._waiting == 0
    last = asyncio.create_task(reads.fetch(segment))
    await asyncio.sleep(0)
    store.go_on.set()
    await last
    assert segment.verified
    reads.close()


async def test_what_nobody_waits_for_any_more_is_not_fetched(tmp_path: Path) -> None:
    reads = DiskReads(asyncio.get_running_loop())
    store = HangingStore(tmp_path)
    segments = [store.segment(number) for number in range(disk_reads.FETCHING_THREADS + 2)]
    waiting = [asyncio.create_task(reads.fetch(each)) for each in segments[:-2]]
    departure = Departure()
    unwanted = asyncio.create_task(reads.fetch(segments[-2], departure.wait))
    await asyncio.sleep(0)
    departure.tell()
    with pytest.raises(ConnectionLost):
        await unwanted
    waiting.append(asyncio.create_task(reads.fetch(segments[-1])))
    await asyncio.sleep(0)
    store.go_on.set()
    await asyncio.gather(*waiting)
    assert set(store.begun) == {*segments} - {segments[-2]}
    reads.close()


async def test_a_thread_that_reads_files_does_not_wait_for_the_archive(tmp_path: Path) -> None:
    """Where the file of a segment was deleted while the segment waited to be looked into."""
    reads = DiskReads(asyncio.get_running_loop())
    go_on = threading.Event()
    busy = [asyncio.create_task(reads.run(lambda: go_on.wait(20))) for _ in range(disk_reads.THREADS)]
    await asyncio.sleep(0)
    segment = Segment(tmp_path, 0)
    segment.end, segment.size = 1, 9
    segment.archived = Archived("n/t/e/0", "0.log", 0, 1, 0, 9, 0, 0, 0.0, ((0, 0),))
    looked = asyncio.get_running_loop().create_future()
    reads.index(segment, "c", looked.set_result)
    segment.leave_to(HangingStore(tmp_path))
    go_on.set()
    await asyncio.gather(*busy)
    assert await looked is None
    assert not segment.verified
    reads.close()
