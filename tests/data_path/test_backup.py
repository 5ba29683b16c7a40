"""A backup of a running nsqd is what a start could have found, and starts."""

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest

from nsquark.data_path import backup as backup_module
from nsquark.data_path.backup import BackupFailed, back_up
from nsquark.data_path.check import NotADataPath, check
from nsquark.data_path.dump import StoredMessage, messages
from nsquark.data_path.findings import Level
from nsquark.errors import LogCorrupt
from nsquark.nsqd.storage.inspection import DataRefused
from tests.daemon import Nsqd, until
from tests.data_path.conftest import SMALL_SEGMENTS
from tests.diskqueue.queues import record, write_queue


def test_a_stopped_nsqd_is_copied_to_the_byte(data_path: Path, tmp_path: Path) -> None:
    result = back_up(data_path, tmp_path / "copy")
    assert result.topics == 2
    assert result.linked >= 3
    for path in data_path.rglob("*"):
        if path.is_file():
            assert (tmp_path / "copy" / path.relative_to(data_path)).read_bytes() == path.read_bytes()
    newest = max((data_path / "topics" / "orders").glob("*.log"))
    assert not os.path.samefile(newest, tmp_path / "copy" / newest.relative_to(data_path))
    assert check(tmp_path / "copy").findings == []


def test_another_file_system_gets_copies(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(backup_module.os, "link", no_links)
    result = back_up(data_path, tmp_path / "copy")
    assert result.linked == 0
    assert check(tmp_path / "copy").findings == []


@pytest.mark.parametrize("round_number", range(3))
def test_a_busy_nsqd_is_copied_consistently_and_the_copy_starts(tmp_path: Path, round_number: int) -> None:
    """Every message that was answered before the backup began is in the copy, unless it was finished."""
    answered = asyncio.run(_back_up_under_load(tmp_path))
    copy = tmp_path / "copy"
    report = check(copy)
    assert report.worst <= Level.WARNING, [each.text for each in report.findings]
    assert not [each for each in report.findings if "torn" not in each.text]
    stored = {each.body for each in messages_up_to_a_torn_tail(copy / "topics" / "kept")}
    assert answered <= stored
    with Nsqd(copy, SMALL_SEGMENTS).start() as nsqd:
        _, answer = asyncio.run(nsqd.http("GET", "/stats?format=json"))
        depths = {each["topic_name"]: each["channels"] for each in json.loads(answer)["topics"]}
        assert depths["kept"][0]["depth"] == len(stored)
        asyncio.run(nsqd.post("/pub?topic=kept", b"goes on"))
        assert nsqd.stop() == 0
    assert check(copy).worst <= Level.NOTE


def messages_up_to_a_torn_tail(directory: Path) -> list[StoredMessage]:
    found = []
    with contextlib.suppress(LogCorrupt):  # the newest batch may be torn, as after a crash
        for each in messages(directory):
            found.append(each)
    return found


async def _back_up_under_load(tmp_path: Path) -> set[bytes]:
    answered: set[bytes] = set()
    stop = asyncio.Event()
    with Nsqd(tmp_path / "data", SMALL_SEGMENTS).start() as nsqd:
        await nsqd.post("/topic/create?topic=kept")
        await nsqd.post("/channel/create?topic=kept&channel=all")
        await nsqd.post("/topic/create?topic=drained")
        await nsqd.post("/channel/create?topic=drained&channel=all")

        async def publish(topic: str) -> None:
            async with await nsqd.connect() as client:
                number = 0
                while not stop.is_set():
                    bodies = [b"%s %d" % (topic.encode(), number + each) + b"." * 50 for each in range(20)]
                    await client.mpub(topic, bodies)
                    number += 20
                    if topic == "kept" and not stop.is_set():
                        answered.update(bodies)

        async def drain() -> None:
            async with await nsqd.connect() as client:
                await client.sub("drained", "all", rdy=100)
                while True:
                    client.fin(await client.message())

        draining = asyncio.create_task(drain())
        publishing = [asyncio.create_task(publish(topic)) for topic in ("kept", "drained")]
        await until(lambda: len(answered) >= 400)
        before = set(answered)
        await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy")
        assert not draining.done()
        stop.set()
        await asyncio.gather(*publishing)
        draining.cancel()  # it may wait for a message that is not published
        with contextlib.suppress(asyncio.CancelledError):
            await draining
        nsqd.kill()
    return before


def test_an_existing_target_is_refused(data_path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").touch()
    with pytest.raises(BackupFailed, match="exists already"):
        back_up(data_path, tmp_path / "copy")
    with pytest.raises(BackupFailed, match="lies within"):
        back_up(data_path, data_path / "copy")
    with pytest.raises(NotADataPath):
        back_up(tmp_path / "copy", tmp_path / "other")


def test_a_failed_backup_leaves_nothing(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        back_up(data_path, tmp_path / "copy")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data"]


def test_messages_of_gos_nsqd_that_are_not_imported_are_refused(data_path: Path, tmp_path: Path) -> None:
    write_queue(data_path, "orders", [record(1)])
    with pytest.raises(DataRefused, match="not imported"):
        back_up(data_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
