"""The thread that waits for the disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.nsqd.storage.syncer import Syncer
from tests.daemon import until
from tests.nsqd.api import running


@pytest.fixture
async def syncer() -> AsyncIterator[Syncer]:
    made = Syncer(asyncio.get_running_loop())
    yield made
    made.stop()
    made.close()


async def test_work_is_done_in_order_and_its_error_comes_back(syncer: Syncer) -> None:
    done: list[int] = []
    await asyncio.gather(*(syncer.run(lambda number=number: done.append(number)) for number in range(10)))
    assert done == list(range(10))

    def refuse() -> None:
        raise OSError(28, os.strerror(28))

    with pytest.raises(OSError, match="No space left"):
        await syncer.run(refuse)
    await syncer.run(lambda: done.append(10))
    assert done[-1] == 10


async def test_what_is_deleted_is_gone_soon_files_and_folders_alike(syncer: Syncer, tmp_path: Path) -> None:
    file, folder, missing = tmp_path / "file", tmp_path / "folder", tmp_path / "missing"
    file.write_bytes(b"x")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(b"x")
    syncer.delete([file, missing, folder])
    await until(lambda: not any(tmp_path.iterdir()))


async def test_publishers_that_wait_for_the_disk_share_an_fsync(tmp_path: Path) -> None:
    async with running(tmp_path, sync_every=1) as api:
        clients = [await api.client() for _ in range(20)]
        await asyncio.gather(*(client.pub("t", b"x") for client in clients))
        topic = api.broker.topics["t"]
        assert topic.log.end == 20
        assert 1 <= api.broker.syncer.times.count <= 20


async def test_an_fsync_that_nobody_waits_for_any_more_is_done_all_the_same(tmp_path: Path) -> None:
    """A staged batch is given up when nsqd stops. Its fsync has taken the files that are full."""
    async with running(tmp_path, sync_timeout=60.0, max_bytes_per_file=4096) as api:
        client = await api.client()
        await client.mpub("t", [b"x" * 3000])
        await client.mpub("t", [b"x" * 3000])
        topic, syncer = api.broker.topics["t"], api.broker.syncer
        assert len(topic.log.segments) > 1
        busy = threading.Event()

        def wait() -> None:
            busy.wait(20)

        syncer.run_then(wait, lambda error: None)
        waiting = asyncio.create_task(syncer.sync_now(topic))
        await asyncio.sleep(0)  # it is asked for, and the thread has something else to do
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert topic.log.unsynced
        busy.set()
        await syncer.run(lambda: None)
        await until(lambda: not topic.log.unsynced)
        topic.log.sync()
