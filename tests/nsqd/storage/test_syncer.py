"""The thread that waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.log.written_files import WrittenFiles
from nsquark.nsqd.storage import syncer as syncer_module
from nsquark.nsqd.storage.syncer import AT_ONCE, TOGETHER, Syncer
from tests.daemon import pub, until
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


async def test_fsyncs_of_many_topics_are_done_together_and_those_of_one_in_order(syncer: Syncer) -> None:
    begin = threading.Event()
    beside = threading.Barrier(TOGETHER, timeout=20)  # broken unless so many of them are under way at once
    done: list[tuple[str, int]] = []
    syncer.run_then(lambda: (begin.wait(20), None)[1], lambda error: None)

    def meet(folder: str) -> None:
        beside.wait()
        done.append((folder, 0))

    for number in range(TOGETHER):
        syncer._submit_fsync(str(number), lambda folder=str(number): meet(folder))
    for number in range(1, 20):
        syncer._submit_fsync("0", lambda number=number: done.append(("0", number)))
    last = syncer._submit_fsync("other", lambda: None)
    begin.set()
    await syncer.run(lambda: None)
    assert last.done()
    assert len(done) == TOGETHER + 19
    assert [number for folder, number in done if folder == "0"] == list(range(20))


async def test_new_journals_that_wait_for_the_disk_are_bounded(
    syncer: Syncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncer_module, "WRITTEN_FILES", WrittenFiles(2 * AT_ONCE))
    most = 0
    done: list[Path] = []

    def replace(fd: int, path: Path, stale: object) -> None:
        os.close(fd)
        done.append(path)

    monkeypatch.setattr(syncer_module, "replace_journal", replace)
    for number in range(200):
        path = tmp_path / str(number) / "journal.000001"
        syncer.sync_then_delete(os.open(tmp_path, os.O_RDONLY), path, [], lambda error: None)
        most = max(most, number + 1 - len(done))
    await syncer.run(lambda: None)
    assert len(done) == 200
    assert most <= AT_ONCE + TOGETHER + 1


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


async def test_topics_that_wait_for_a_slow_disk_wait_without_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    fdatasync = os.fdatasync

    def slow(fd: int) -> None:
        disk.wait()
        fdatasync(fd)

    def opened() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
        return count

    async with running(tmp_path, sync_every=2) as api:
        monkeypatch.setattr(os, "fdatasync", slow)
        try:
            client = await api.client()
            for number in range(60):
                for _ in range(2):
                    await client.pub(f"t{number}", b"x")
            topics = list(api.broker.topics.values())
            assert len(topics) == 60
            # The log and the journal of each, its new journal until synced, two of each fsync, a lock.
            assert opened() <= 3 * len(topics) + 2 * AT_ONCE + 2
        finally:
            disk.set()
        await until(lambda: not any(topic.log.unsynced for topic in topics))
        await until(lambda: opened() <= 2 * len(topics) + 2)


async def test_a_topic_that_is_deleted_before_its_fsync_begins_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (disk.wait(), fdatasync(fd)))
    async with running(tmp_path, sync_every=1) as api:
        try:
            clients = [await api.client() for _ in range(AT_ONCE + 5)]
            for number, client in enumerate(clients):
                client.send(pub(f"t{number}", b"x"))
            topics = api.broker.topics

            def waiting() -> list[str]:
                return [name for name, topic in topics.items() if topic.unsynced_receipts]

            await until(lambda: len(topics) == len(clients) and len(waiting()) == 5)
            deleted = waiting()[2]
            refused = clients.pop(int(deleted.removeprefix("t")))
            deleting = asyncio.create_task(api.done(f"/topic/delete?topic={deleted}"))
            assert (await refused.error()).startswith(b"E_PUB_FAILED")
        finally:
            disk.set()
        await deleting
        for client in clients:
            await client.ok()
        # The name is free again, and its fsync is one of its own.
        await clients[0].pub(deleted, b"again")
        assert topics[deleted].log.unsynced == 0


@pytest.mark.parametrize(("error", "refused"), [(errno.EIO, True), (errno.EMFILE, False)])
async def test_publishers_that_wait_for_the_disk_hear_that_a_file_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, refused: bool
) -> None:
    """An earlier process has left a full file, and the disk does not let it be synced."""
    monkeypatch.setattr(syncer_module, "RETRY", 0.05)
    async with running(tmp_path) as api:
        client = await api.client()
        await client.pub("t", b"first")
    real = os.open
    failing = True
    tried = 0

    def open_(path: Path | str, flags: int, *arguments: int) -> int:
        nonlocal tried
        if failing and str(path) == str(first) and flags & os.O_WRONLY:
            tried += 1
            raise OSError(error, os.strerror(error))
        return real(path, flags, *arguments)

    (first,) = (tmp_path / "topics" / "t").glob("*.log")
    monkeypatch.setattr(os, "open", open_)
    async with running(tmp_path, sync_every=1, sync_timeout=3600, max_bytes_per_file=1) as api:
        client = await api.client()
        client.send(pub("t", b"second"))
        if refused:
            assert (await client.error()).endswith(os.strerror(error).encode())
        else:  # descriptors come back
            await until(lambda: tried > 2)
        assert (await api.get("/ping")).status == 500
        failing = False
        if not refused:
            await client.ok()
        await until(lambda: api.broker.health == "OK")
        assert api.broker.topics["t"].log.unsynced == 0
