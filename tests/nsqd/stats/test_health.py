"""Health: what failed is told until that thing works again, and nothing else takes it away."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.nsqd.stats.health import METADATA, WRITE, Health
from nsquark.nsqd.storage import metadata_saving
from tests.daemon import until
from tests.nsqd.api import Api, running
from tests.nsqd.harness import SECOND, Publisher, Reader, refuse_commits
from tests.nsqd.storage.test_trouble import opened


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


def refuse(*_: object) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def test_the_latest_problem_is_told_until_its_thing_works() -> None:
    health = Health(lambda: None)
    health.failed(WRITE, "full")
    health.failed(("t", "read", "c"), "unreadable")
    health.failed(("t", "fsync"), "slow")
    assert health.text == "NOK - slow"
    health.works(("t", "fsync"))
    assert health.text == "NOK - unreadable"
    health.works(("u",))
    health.works(WRITE)
    assert health.text == "NOK - unreadable"
    health.works(("t",))
    assert health.text == "OK"


def test_a_topic_cannot_be_called_like_a_problem() -> None:
    health = Health(lambda: None)
    for what in (WRITE, METADATA):
        health.failed((*what[0].split("/"), "journal"), "x")
        health.works(what)
        assert health.text == "NOK - x"
        health = Health(lambda: None)


async def test_a_good_write_anywhere_follows_a_bad_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.done("/pub?topic=a", b"x")
    with monkeypatch.context() as patch:
        refuse_commits(patch, api.broker.topics["a"], OSError(5, "Input/output error"))
        assert (await api.post("/pub?topic=a", b"x")).status == 503
    answer = await api.get("/ping")
    assert (answer.status, answer.body) == (500, b"NOK - [Errno 5] Input/output error")
    assert (await api.stats())["health"] == "NOK - [Errno 5] Input/output error"
    await api.done("/pub?topic=b", b"x")
    assert (await api.get("/ping")).body == b"OK"


def test_a_good_write_does_not_hide_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, topic = opened(tmp_path, mem_queue_size=1)
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 10)
    topic.publish([b"one"], 0, Publisher())
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", refuse)
        topic.commit()
        topic.log.tail.clear()
        harness.turn.run()
        topic.publish([b"two"], 0, Publisher())
        topic.commit()
        topic.log.tail.clear()
        harness.turn.run()
        assert "Input/output" in harness.health.text
    harness.pass_time(2 * SECOND)
    assert len(reader.take()) == 2
    assert harness.health.text == "OK"
    topic.close()


def test_a_channel_that_is_deleted_takes_its_problem_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, topic = opened(tmp_path)
    topic.channel("c")
    topic.health.broken("unreadable", "read", "c")
    topic.health.broken("another", "read", "d")
    topic.delete_channel("c")
    assert harness.health.text == "NOK - another"
    topic.close()


def test_a_damaged_segment_is_told_until_it_is_acknowledged(tmp_path: Path) -> None:
    harness, topic = opened(tmp_path, max_bytes_per_file=500)
    for _ in range(10):
        topic.publish([b"x" * 100], 0, Publisher())
        harness.turn.run()
    damaged = topic.log.segments[0].path
    topic.close()
    damaged.write_bytes(bytes(damaged.stat().st_size))
    harness, topic = opened(tmp_path, max_bytes_per_file=500)
    topic.restore(["c"], False, harness.clock.now)
    channel, reader = topic.channels["c"], Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    harness.turn.run()
    assert damaged.name in harness.health.text
    topic.publish([b"x" * 100], 0, Publisher())
    harness.turn.run()
    assert damaged.name in harness.health.text
    got = reader.take()
    assert len(got) == 9
    for number, _, _ in got:
        channel.finish(reader.consumer, number, number + 1)
    topic.trimming.run(harness.clock.now / SECOND)
    assert not damaged.exists()
    assert damaged.name in harness.health.text
    topic.close()
    harness, topic = opened(tmp_path, max_bytes_per_file=500)
    assert damaged.name in harness.health.text
    topic.health.acknowledged(topic.health.acknowledge())
    assert harness.health.text == "OK"
    topic.close()
    harness, topic = opened(tmp_path, max_bytes_per_file=500)
    assert harness.health.text == "OK"
    topic.close()


def test_a_journal_is_told_until_it_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, topic = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(topic.journal, "flush", refuse)
        topic.channel("c")
        harness.turn.run()
        topic.publish([b"x"], 0, Publisher())
        harness.turn.run()
        assert "Input/output" in harness.health.text
    topic.channel("d")
    harness.turn.run()
    assert harness.health.text == "OK"
    topic.close()


async def test_metadata_is_told_until_it_can_be_written(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.done("/topic/create?topic=t")
    await until(lambda: api.broker.saving.idle)
    with monkeypatch.context() as patch:
        patch.setattr(metadata_saving, "write_atomically", refuse)
        assert (await api.post("/topic/pause?topic=t")).status == 503
    await api.done("/pub?topic=t", b"x")
    assert (await api.get("/ping")).status == 500
    await api.done("/topic/unpause?topic=t")
    assert (await api.get("/ping")).status == 200


async def test_fsync_is_told_until_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, sync_every=1) as api:
        await api.done("/pub?topic=t", b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", refuse)
            assert (await api.post("/pub?topic=t", b"x")).status == 503
        assert (await api.get("/ping")).status == 500
        await api.done("/pub?topic=u", b"x")  # a good write, and another topic's good fsync
        assert (await api.get("/ping")).status == 500
        await api.done("/pub?topic=t", b"x")
        assert (await api.get("/ping")).status == 200
        assert api.broker.syncer.times.count >= 4


async def test_a_topic_that_is_deleted_takes_its_problems_with_it(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    api.broker.topics["t"].health.broken("unreadable", "segment", "somewhere")
    assert (await api.get("/ping")).status == 500
    await api.done("/topic/delete?topic=t")
    assert (await api.get("/ping")).status == 200
