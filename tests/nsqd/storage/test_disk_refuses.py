"""A disk that refuses writes or fsyncs: what was answered holds, what cannot be kept is not begun, and all is
well again by itself when the disk is."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nsquark.log import Journal, Limits, TopicLog
from nsquark.nsqd import broker as broker_module
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core import topic as topic_module
from nsquark.nsqd.options import Options
from nsquark.nsqd.staged import stage_folder
from nsquark.nsqd.storage import metadata_saving
from nsquark.nsqd.storage import syncer as syncer_module
from tests.daemon import pub, until
from tests.http.served import Answer
from tests.log.contents import Ids, body_of, read_what_is_left
from tests.log.disk import Disk
from tests.nsqd.api import Api, running
from tests.nsqd.harness import Publisher, Reader
from tests.nsqd.staged.test_staging import App

FULL = os.strerror(errno.ENOSPC)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(syncer_module, "RETRY", 0.02)
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 0.02)
    monkeypatch.setattr(metadata_saving, "SAVE_AGAIN", 0.02)
    disk = Disk(monkeypatch)
    yield disk
    disk.refuses = lambda path: False
    disk.close()


class Writes:
    """`os.write`, but for files that are `full`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full: Callable[[str], bool] = lambda path: False
        self._real = os.write
        patch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.full(os.readlink(f"/proc/self/fd/{fd}")):
            raise OSError(errno.ENOSPC, FULL)
        return self._real(fd, data)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 0.02)
    return Writes(monkeypatch)


def in_journal(path: str) -> bool:
    return "/journal." in path


async def healthy(api: Api) -> None:
    await until(lambda: api.broker.health == "OK")


def bodies(folder: Path) -> list[bytes]:
    """What a start would find in a log."""
    log = TopicLog(folder, Limits(), Ids())
    found = [body_of(frame) for frame in read_what_is_left(log)]
    log.close(sync=False)
    return found


# ---- fsync


async def test_nothing_that_was_answered_rests_on_an_fsync_that_failed(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with running(data, sync_every=1, max_bytes_per_file=2000) as api:
        await api.done("/pub?topic=t", b"first")
        answered = [b"first"]
        chance = random.Random(5)
        for number in range(60):
            if number % 10 < 6:
                disk.refuses = lambda path: "/topics/t" in path and chance.random() < 0.4
            else:
                disk.refuses = lambda path: False
            if (await api.post("/pub?topic=t", body := b"%d" % number * 50)).status == 200:
                answered.append(body)
            shown = json.loads((await api.get("/log/range?topic=t")).body)
            disk.cut_power(data / "topics" / "t", cut := tmp_path / f"cut{number}")
            assert set(answered) <= set(bodies(cut))
            assert shown["synced"] <= len(bodies(cut))
            shutil.rmtree(cut)
        assert 20 < len(answered) < 60
        disk.refuses = lambda path: False
        await until(lambda: api.broker.topics["t"].log.unsynced == 0)
        await healthy(api)


async def test_a_failed_fsync_is_told_and_mended_without_traffic(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with running(data, sync_every=1) as api:
        await api.done("/pub?topic=t", b"one")
        disk.refuses = lambda path: "/topics/t" in path
        answer = await api.post("/pub?topic=t", b"two")
        assert answer.status == 503
        assert json.loads(answer.body) == {"message": "NOT_STORED", "reason": "Input/output error"}
        assert api.broker.topics["t"].synced == 1
        client = await api.client()
        client.send(pub("t", b"three"))
        assert await client.error() == b"E_PUB_FAILED PUB failed Input/output error"
        assert (await api.get("/ping")).body == b"NOK - [Errno 5] Input/output error"
        disk.refuses = lambda path: False
        await healthy(api)
        assert api.broker.topics["t"].synced == 3
        await api.done("/pub?topic=t", b"four")
        disk.cut_power(data / "topics" / "t", tmp_path / "cut")
        assert bodies(tmp_path / "cut") == [b"one", b"two", b"three", b"four"]


async def test_a_folder_alone_that_is_not_synced_holds_back_the_answers(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with running(data, sync_every=1) as api:
        disk.refuses = lambda path: path.endswith("/topics/t")
        assert (await api.post("/pub?topic=t", b"one")).status == 503
        assert (await api.post("/pub?topic=t", b"two")).status == 503
        disk.refuses = lambda path: False
        await api.done("/pub?topic=t", b"three")
        await healthy(api)
        disk.cut_power(data / "topics" / "t", tmp_path / "cut")
        assert bodies(tmp_path / "cut") == [b"one", b"two", b"three"]


async def test_a_topic_whose_fsync_fails_can_be_deleted_and_created_again(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path, sync_every=1) as api:
        await api.done("/pub?topic=t", b"one")
        disk.refuses = lambda path: path.endswith((".log", ".new"))
        assert (await api.post("/pub?topic=t", b"two")).status == 503
        await api.done("/topic/delete?topic=t")
        await healthy(api)
        disk.refuses = lambda path: False
        await api.done("/pub?topic=t", b"three")
        await asyncio.sleep(0.1)
        assert bodies(tmp_path / "topics" / "t") == [b"three"]
        await healthy(api)


async def test_consumers_get_what_is_published_while_a_segment_is_written_again(
    tmp_path: Path, disk: Disk
) -> None:
    async with running(tmp_path, sync_every=1, mem_queue_size=2) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        chance = random.Random(7)
        disk.refuses = lambda path: path.endswith((".log", ".new")) and chance.random() < 0.3
        for number in range(30):
            await api.post("/pub?topic=t", b"%d" % number)
        disk.refuses = lambda path: False
        client = await api.client()
        await client.sub("t", "c", 5)
        for number in range(30):
            message = await client.message()
            assert (message.body, message.attempts) == (b"%d" % number, 1)
            client.fin(message)
        await healthy(api)


# ---- the journal


@asynccontextmanager
async def with_backlog(path: Path, messages: int = 10) -> AsyncIterator[tuple[Api, Any]]:
    async with running(path) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await api.done("/mpub?topic=t", b"\n".join(b"%d" % number for number in range(messages)))
        yield api, api.broker.topics["t"]


def not_stored(answer: Answer) -> bool:
    return (answer.status, json.loads(answer.body)) == (503, {"message": "NOT_STORED", "reason": FULL})


async def killed_and_started(before: Api, path: Path, into: Path) -> dict[str, Any]:
    """What another process would make of these files."""
    await before.broker.syncer.run(lambda: shutil.copytree(path, into) and None)
    async with running(into) as api:
        return (await api.stats())["topics"][0]


MOVES = [
    "/channel/seek?topic=t&channel=c&to=5",
    "/channel/seek?topic=t&channel=c&to=latest",
    "/channel/commit?topic=t&channel=c&to=5",
    "/channel/empty?topic=t&channel=c",
    "/channel/create?topic=t&channel=new",
    "/channel/create?topic=t&channel=new&from=earliest",
    "/channel/delete?topic=t&channel=c",
    "/topic/empty?topic=t",
]


def without_idle_times(topic: dict[str, Any]) -> dict[str, Any]:
    """What /stats tells of a topic, but for when its channels were used last: a request is a use."""
    channels = [{**each, "idle_since": None} for each in topic["channels"]]
    return {**topic, "channels": channels}


@pytest.mark.parametrize("path", MOVES)
async def test_what_the_journal_cannot_keep_is_not_done(tmp_path: Path, writes: Writes, path: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with with_backlog(data) as (api, topic):
        await until(lambda: topic.log.tail_length == 0)  # an idle topic keeps nothing in memory
        writes.full = in_journal
        before = without_idle_times(await api.topic("t"))
        assert not_stored(await api.post(path))
        assert without_idle_times(await api.topic("t")) == before
        assert not_stored(await api.post(path))
        assert (await api.get("/ping")).status == 500
        assert (await api.get("/log/range?topic=t&channel=c&commit=3")).status == 503
        writes.full = lambda path: False
        await api.done(path)
        after = await api.topic("t")
        found = await killed_and_started(api, data, tmp_path / "killed")
        channels = {each["channel_name"]: each["depth"] for each in after["channels"]}
        assert {each["channel_name"]: each["depth"] for each in found["channels"]} == channels
        assert found["depth"] == after["depth"]
        await healthy(api)


async def test_fins_are_owed_while_the_journal_cannot_be_written(tmp_path: Path, writes: Writes) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with with_backlog(data, 1000) as (api, topic):
        client = await api.client()
        await client.sub("t", "c", 100)
        for number in range(1000):
            if number == 300:
                await client.caught_up()
                writes.full = in_journal
            client.fin(await client.message())
        await client.caught_up()
        assert topic.channels["c"].depth == 0
        assert FULL in api.broker.health
        client.close()
        await until(lambda: not topic.channels["c"].consumers)
        await asyncio.sleep(0.1)  # idle
        assert len(topic.journal.block()) < 100  # nothing has gathered
        writes.full = lambda path: False
        await healthy(api)  # without anything having happened
        found = await killed_and_started(api, data, tmp_path / "killed")
        assert found["channels"][0]["depth"] == 0


async def test_a_journal_that_cannot_grow_is_not_given_up(
    tmp_path: Path, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that does not fit leaves the journal there is, which is complete."""
    data = tmp_path / "data"
    data.mkdir()
    async with with_backlog(data) as (api, topic):
        name = topic.journal.path.name
        writes.full = lambda path: in_journal(path) and not path.endswith(name)
        topic.journaling.rewrite()
        assert api.broker.health != "OK"
        await api.done("/channel/commit?topic=t&channel=c&to=7")
        found = await killed_and_started(api, data, tmp_path / "killed")
        assert found["channels"][0]["depth"] == 3


async def test_a_journal_whose_fsync_failed_is_begun_anew(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    data.mkdir()
    folder = data / "topics" / "t"
    async with running(data, sync_every=1) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await api.done("/mpub?topic=t", b"1\n2\n3")
        topic = api.broker.topics["t"]
        await until(lambda: not topic.journal.unsynced)
        disk.refuses = in_journal
        await api.done("/channel/commit?topic=t&channel=c&to=2")
        await until(lambda: api.broker.health != "OK")
        begun = topic.journal.generation
        await until(lambda: topic.journal.generation > begun + 3)
        # as often as it was tried: the one that is on the disk, the newest, and perhaps one between
        assert len(list(folder.glob("journal.*"))) <= 3
        disk.cut_power(folder, tmp_path / "early")
        assert "c" in Journal(tmp_path / "early").state.channels
        disk.refuses = lambda path: False
        await healthy(api)
        disk.cut_power(folder, tmp_path / "cut")
        state = Journal(tmp_path / "cut").state.channels["c"]
        state.settle(3)
        assert state.position == 2


async def test_the_old_journal_stays_until_the_folder_knows_the_new_one(tmp_path: Path, disk: Disk) -> None:
    data = tmp_path / "data"
    data.mkdir()
    folder = data / "topics" / "t"
    async with running(data) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        topic = api.broker.topics["t"]
        await api.broker.syncer.sync_journal(topic)
        disk.refuses = lambda path: path.endswith("/topics/t")
        old = topic.journal.path
        topic.journaling.rewrite()
        await until(lambda: api.broker.health != "OK")
        assert old.exists()
        disk.cut_power(folder, tmp_path / "cut")
        assert "c" in Journal(tmp_path / "cut").state.channels
        disk.refuses = lambda path: False
        await until(lambda: not old.exists())
        await healthy(api)


async def test_a_deletion_that_was_not_stored_may_be_repeated(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        for path in ("/channel/delete?topic=t&channel=c", "/topic/delete?topic=t"):
            disk.refuses = lambda path: "nsqd.dat" in path
            for _ in range(2):
                answer = await api.post(path)
                assert (answer.status, json.loads(answer.body)["message"]) == (503, "NOT_STORED")
            disk.refuses = lambda path: False
            await api.done(path)
            assert (await api.post(path)).status == 404
        await healthy(api)


# ---- publishing, and the node's own files


async def test_a_new_topic_on_a_full_disk_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as api:
        fds = set(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:

            def refuse(directory: Path, inspected: object, term: int) -> Journal:
                raise OSError(errno.ENOSPC, FULL)

            patch.setattr(topic_module, "Journal", refuse)
            for path in ("/pub?topic=t", "/mpub?topic=t", "/topic/create?topic=t"):
                assert not_stored(await api.post(path, b"x"))
        assert set(os.listdir("/proc/self/fd")) == fds
        await api.done("/pub?topic=t", b"x")


async def test_metadata_that_cannot_be_saved_are_told_once_and_by_nobody_else(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    unretrieved: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    async with running(tmp_path) as api:
        disk.refuses = lambda path: "nsqd.dat" in path
        with caplog.at_level(logging.ERROR):
            api.broker.topic("t")
            tries = len(disk.asked)
            await until(lambda: len(disk.asked) > tries + 5)
        gc.collect()
        assert [record.getMessage() for record in caplog.records] == [
            "failed to persist metadata - [Errno 5] Input/output error"
        ]
        disk.refuses = lambda path: False
        await healthy(api)
        assert b'"name":"t"' in (tmp_path / "nsqd.dat").read_bytes()
    gc.collect()
    assert not unretrieved


# ---- the end


async def test_nobody_hears_ok_at_the_end_before_it_is_on_the_disk(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    options = Options(data_path=str(tmp_path), sync_every=1)
    broker = Broker(options, asyncio.get_running_loop())
    broker.load()
    publishers = {name: Publisher() for name in ("bad", "good")}
    topics = [broker.topic(name) for name in publishers]
    await broker.stop_saving()
    disk.refuses = lambda path: "/topics/bad/" in path
    for topic, publisher in zip(topics, publishers.values(), strict=True):
        topic.publish([b"x"], 0, publisher)
    assert not broker.close()
    assert publishers["good"].settled == [None]
    assert publishers["bad"].settled == ["Input/output error"]
    assert "topic bad could not be stored" in caplog.text
    disk.cut_power(tmp_path / "topics" / "good", tmp_path / "cut")
    assert bodies(tmp_path / "cut") == [b"x"]


async def test_a_message_is_finished_at_the_end_only_if_its_dead_letter_is_on_the_disk(
    tmp_path: Path, disk: Disk
) -> None:
    for refuses, left in ((True, 1), (False, 0)):
        path = tmp_path / str(refuses)
        path.mkdir()
        broker = Broker(Options(data_path=str(path), max_attempts=1), asyncio.get_running_loop())
        broker.load()
        topic = broker.topic("t")
        channel, reader = topic.channel("c"), Reader()
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, 1)
        topic.publish([b"x"], 0, Publisher())
        broker.turn.run()
        [(number, _, _)] = reader.take()
        disk.refuses = lambda path, refuses=refuses: refuses and "/topics/t.c.dead/" in path
        channel.requeue(reader.consumer, number, number + 1, 0, topic.now())  # and dies
        await broker.stop_saving()
        assert broker.close() is not refuses
        disk.refuses = lambda path: False
        async with running(path) as api:
            (found,) = (await api.topic("t"))["channels"]
            assert found["depth"] + found["deferred_count"] == left


async def test_the_journal_of_a_new_topic_is_not_deleted_for_the_sake_of_an_old_one(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        old = api.broker.topics["t"]
        started, go = threading.Event(), threading.Event()
        waiting = asyncio.create_task(api.broker.syncer.run(lambda: (started.set(), go.wait())))  # type: ignore[arg-type, return-value]
        await asyncio.to_thread(started.wait)
        old.journaling.rewrite()  # journal.000002 replaces journal.000001, once the thread gets to it
        api.broker.delete_topic("t")
        journal = api.broker.topic("t").journal.path
        assert journal.name == "journal.000001"
        go.set()
        await waiting
        await api.broker.syncer.run(lambda: None)
        assert journal.exists()


async def test_a_stage_whose_fsync_failed_is_written_again(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        for seq in range(3):
            await app.put(0, [b"%d" % seq], seq=seq)
        stage = next((tmp_path / "staged" / "app" / "0").iterdir())
        disk.refuses = lambda path: path == str(stage)
        assert (await app.publish(0, (0, "a", 3)))[0] == 503
        before = stage.stat().st_ino
        disk.refuses = lambda path: False
        content = stage.read_bytes()
        kept: list[tuple[int, bytes]] = []
        real = stage_folder.write_atomically

        def write(path: Path, data: bytes) -> None:
            """The intent: by now the disk must have the stage."""
            if stage.exists():
                disk.cut_power(stage.parent, cut := tmp_path / f"cut{len(kept)}")
                kept.append((stage.stat().st_ino, (cut / stage.name).read_bytes()))
            real(path, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage_folder, "write_atomically", write)
            assert (await app.publish(0, (0, "a", 3)))[0] == 200
        assert kept[0][1] == content
        assert kept[0][0] != before
