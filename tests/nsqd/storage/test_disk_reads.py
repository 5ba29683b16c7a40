"""Reading in threads."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from nsquark.log import Segment
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
