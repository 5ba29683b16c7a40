"""Staged publishing over HTTP: put, publish, replay, abort, list; what is refused; what a restart finds."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.staged import publication
from tests.daemon import until
from tests.nsqd.api import Api, running


def mpub_body(bodies: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(each)) + each for each in bodies)


def named(wanted: Sequence[tuple[int, str, int]], note: str = "") -> bytes:
    partitions = [
        {"partition": partition, "attempt": attempt, "messages": messages}
        for partition, attempt, messages in wanted
    ]
    return json.dumps({"partitions": partitions, **({"note": note} if note else {})}).encode()


class App:
    """An application as its tasks and its driver see nsqd."""

    def __init__(self, api: Api, name: str = "app") -> None:
        self.api = api
        self.name = name

    async def ask(self, path: str, body: bytes = b"") -> tuple[int, Any]:
        answer = await self.api.post(path, body)
        return answer.status, json.loads(answer.body)

    async def put(
        self,
        batch: int,
        bodies: Sequence[bytes],
        *,
        partition: int = 0,
        attempt: str = "a",
        seq: int = 0,
        topic: str = "t",
        more: str = "",
    ) -> tuple[int, Any]:
        query = f"batch={batch}&partition={partition}&attempt={attempt}&seq={seq}&topic={topic}{more}"
        return await self.ask(f"/staged/put?app={self.name}&{query}", mpub_body(bodies))

    async def publish(self, batch: int, *wanted: tuple[int, str, int], note: str = "") -> tuple[int, Any]:
        return await self.ask(f"/staged/publish?app={self.name}&batch={batch}", named(wanted, note))

    async def prepare(self, batch: int, *wanted: tuple[int, str, int], home: str = "n1") -> tuple[int, Any]:
        query = f"app={self.name}&batch={batch}&home={home}&home_url=http://{home}:4151"
        return await self.ask(f"/staged/prepare?{query}", named(wanted))

    async def published(self, batch: int, bodies: Sequence[bytes]) -> None:
        assert await self.put(batch, bodies) == (200, {"known": False})
        status, answer = await self.publish(batch, (0, "a", len(bodies)))
        assert (status, answer["known"], answer["messages"]) == (200, False, len(bodies))

    async def listed(self) -> Any:
        answer = await self.api.get("/staged")
        return {app["app"]: app for app in json.loads(answer.body)["apps"]}.get(self.name)


async def bodies_of(api: Api, topic: str, number: int) -> list[bytes]:
    """What a new channel gets of a topic, which must be this many messages and no more."""
    assert (await api.topic(topic))["depth"] == number
    client = await api.client()
    await client.sub(topic, "all", rdy=number + 1)
    messages = []
    for _ in range(number):
        messages.append(await client.message())
        client.fin(messages[-1])
    await client.caught_up()
    assert len({message.id for message in messages}) == number
    return [message.body for message in messages]


async def test_a_batch_is_published_as_a_whole_and_once(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        assert await app.put(5, [b"1", b"2"]) == (200, {"known": False})
        assert await app.put(5, [b"3"], seq=1, topic="u") == (200, {"known": False})
        assert await app.put(5, [b"4"], partition=1, attempt="b") == (200, {"known": False})
        assert await app.put(5, [b"lost"], partition=1, attempt="slow") == (200, {"known": False})
        assert "t" not in api.broker.topics
        status, answer = await app.publish(5, (1, "b", 1), (0, "a", 3))
        assert status == 200
        assert answer == {"known": False, "batch": 5, "messages": 4, "topics": {"t": 3, "u": 1}, "note": ""}
        # again, with other stages even: it is what it was
        assert await app.publish(5, (0, "z", 9)) == (200, {**answer, "known": True})
        assert await app.put(5, [b"late"], partition=1, attempt="slow", seq=1) == (200, {"known": True})
        assert await app.publish(3) == (
            200,
            {"known": True, "batch": 3, "messages": None, "topics": None, "note": ""},
        )
        assert await bodies_of(api, "t", 3) == [b"1", b"2", b"4"]
        assert await bodies_of(api, "u", 1) == [b"3"]
        listed = await app.listed()
        assert listed == {
            "app": "app",
            "last_batch": 5,
            "publishing_batch": None,
            "prepared_batch": None,
            "home": None,
            "batches": [],
        }
        assert api.broker.staging.folder.bytes == api.broker.staging.folder.stages == 0


async def test_a_put_whose_answer_was_lost_may_be_repeated(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        for seq in (0, 0, 1, 0, 1):
            assert (await app.put(0, [b"%d" % seq], seq=seq))[0] == 200
        assert await app.put(0, [b"3"], seq=3) == (409, {"message": "SEQ_GAP"})
        assert (await app.publish(0, (0, "a", 2)))[0] == 200
        assert await bodies_of(api, "t", 2) == [b"0", b"1"]


async def test_only_what_was_meant_is_published(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        assert await app.publish(0, (0, "a", 1)) == (404, {"message": "STAGE_NOT_FOUND"})
        assert await app.listed() is None
        await app.put(0, [b"1", b"2"])
        assert await app.publish(0, (0, "b", 2)) == (404, {"message": "STAGE_NOT_FOUND"})
        assert await app.publish(0, (0, "a", 3)) == (409, {"message": "STAGE_INCOMPLETE"})
        assert await app.put(0, [b"3"], seq=1) == (200, {"known": False})
        # a partition without rows has no stage
        assert (await app.publish(0, (0, "a", 3), (1, "none", 0)))[1]["messages"] == 3
        # or one that was not taken
        assert (await app.put(1, [b"x"], seq=5))[0] == 409
        assert (await app.publish(1, (0, "a", 0)))[1]["messages"] == 0
        # nor has an empty batch
        status, answer = await app.publish(2)
        assert (status, answer) == (
            200,
            {"known": False, "batch": 2, "messages": 0, "topics": {}, "note": ""},
        )


async def test_deferred_messages_wait_from_the_publish_on(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        await app.put(0, [b"now"])
        await app.put(0, [b"later", b"later too"], seq=1, more="&defer=60000")
        await app.publish(0, (0, "a", 3))
        await api.done("/channel/create?topic=t&channel=c")
        (channel,) = (await api.topic("t"))["channels"]
        assert (channel["depth"], channel["deferred_count"]) == (1, 2)


async def test_the_longest_time_there_is_can_be_waited_for(tmp_path: Path) -> None:
    longest_ms = (1 << 63) // 1_000_000
    async with running(tmp_path, max_req_timeout=longest_ms / 1000) as api:
        app = App(api)
        assert (await app.put(0, [b"later"], more=f"&defer={longest_ms}"))[0] == 200
        assert (await app.publish(0, (0, "a", 1)))[0] == 200
        await api.done("/channel/create?topic=t&channel=c")
        (channel,) = (await api.topic("t"))["channels"]
        assert (channel["depth"], channel["deferred_count"]) == (0, 1)


async def test_abort_lets_go_of_a_batch_or_of_one_attempt(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        for attempt in ("a", "b", "c"):
            await app.put(0, [b"x"], attempt=attempt)
        await app.put(0, [b"x"], partition=1)
        await app.put(1, [b"x"])
        assert await app.ask("/staged/abort?app=app&batch=0&partition=0&attempt=b") == (200, {"aborted": 1})
        assert (await app.publish(0, (0, "b", 1)))[0] == 404
        assert await app.ask("/staged/abort?app=app&batch=0&partition=0") == (200, {"aborted": 2})
        assert await app.ask("/staged/abort?app=app&batch=0") == (200, {"aborted": 1})
        assert await app.ask("/staged/abort?app=app&batch=0") == (200, {"aborted": 0})
        assert await app.ask("/staged/abort?app=other&batch=0") == (200, {"aborted": 0})
        # and it may be staged again
        await app.published(0, [b"again"])
        assert await bodies_of(api, "t", 1) == [b"again"]
        assert api.broker.staging.folder.stages == 1


async def test_what_is_abandoned_expires(tmp_path: Path) -> None:
    async with running(tmp_path, staged_timeout=100.0, staged_app_timeout=1000.0) as api:
        app = App(api)
        await app.published(0, [b"x"])
        await app.put(1, [b"y"])
        api.broker.staging.sweep(time.time() + 90)
        assert len((await app.listed())["batches"]) == 1
        api.broker.staging.sweep(time.time() + 110)
        assert (await app.listed())["batches"] == []
        assert api.broker.staging.folder.bytes == 0
        api.broker.staging.sweep(time.time() + 900)
        assert (await app.listed())["last_batch"] == 0
        api.broker.staging.sweep(time.time() + 1100)
        assert await app.listed() is None
    assert not [path for path in (tmp_path / "staged").iterdir() if not path.name.startswith(".deleted")]


async def test_what_is_prepared_is_kept_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        assert await app.prepare(0, (0, "a", 1)) == (404, {"message": "STAGE_NOT_FOUND"})
        await app.put(0, [b"1"])
        assert await app.prepare(0, (0, "a", 2)) == (409, {"message": "STAGE_INCOMPLETE"})
        assert await app.prepare(0, (0, "a", 1)) == (200, {"known": False})
        await app.put(1, [b"2"])
        now = time.time()
        options = api.broker.options
        api.broker.staging.sweep(now + options.staged_timeout + 60)
        assert [each["batch"] for each in (await app.listed())["batches"]] == [0]
    async with running(tmp_path) as api:  # a restart has not forgotten it
        app = App(api)
        assert (await app.listed())["prepared_batch"] == 0
        api.broker.staging.sweep(now + options.staged_timeout + 60)
        assert (await app.publish(0, (0, "a", 1)))[1]["messages"] == 1
        assert (await app.listed())["prepared_batch"] is None
        assert await app.prepare(0, (0, "b", 1)) == (200, {"known": True})
        await app.put(1, [b"2"])
        assert (await app.prepare(1, (0, "a", 1)))[0] == 200
        api.broker.staging.sweep(now + options.staged_app_timeout + 60)
        assert await app.listed() is None


async def test_an_application_has_one_home(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        assert await app.prepare(3) == (200, {"known": False})
        assert await app.prepare(3, home="n2") == (409, {"message": "HOME_DIFFERS"})
    async with running(tmp_path) as api:
        app = App(api)
        assert (await app.listed())["home"] == {"node": "n1", "url": "http://n1:4151"}
        assert await app.prepare(4, home="n2") == (409, {"message": "HOME_DIFFERS"})
        for query in ("home=&home_url=http://n", "home=n&home_url=file:///etc"):
            assert (await app.ask(f"/staged/prepare?app=app&batch=0&{query}", named(())))[0] == 400


async def test_a_note_comes_back_with_its_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        app = App(api)
        await app.put(0, [b"1"])
        assert (await app.publish(0, (0, "a", 1), note="so be it"))[1]["note"] == "so be it"
        assert (await app.publish(0, note="otherwise"))[1]["note"] == "so be it"
    async with running(tmp_path) as api:
        app = App(api)
        assert (await app.publish(0))[1]["note"] == "so be it"
        assert (await app.publish(1, note="next"))[1] == {
            "known": False,
            "batch": 1,
            "messages": 0,
            "topics": {},
            "note": "next",
        }
        assert (await app.publish(0))[1]["note"] == ""
        assert (await app.ask("/staged/publish?app=app&batch=2", b'{"partitions":[],"note":7}'))[0] == 400


async def test_a_disk_that_refuses_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "PIECE", 40)  # a record
    async with running(tmp_path) as api:
        app = App(api)
        for seq in range(5):
            await app.put(0, [b"%d" % seq], seq=seq)
        api.broker.topic("t")
        log = api.broker.topics["t"].log
        assert log.files is not None
        write, left = os.write, 3

        def refuse(fd: int, data: bytes) -> int:
            nonlocal left
            left -= fd == log.files.fd
            if left < 0:
                raise OSError(28, "No space left on device")
            return write(fd, data)

        monkeypatch.setattr(os, "write", refuse)
        refused = {"message": "NOT_STORED", "reason": "No space left on device"}
        assert await app.publish(0, (0, "a", 5)) == (503, refused)
        assert (await app.listed())["publishing_batch"] == 0
        assert (await api.get("/ping")).status == 500
        assert await app.ask("/staged/abort?app=app&batch=0") == (409, {"message": "BATCH_PUBLISHING"})
        assert await app.put(0, [b"late"], seq=5) == (200, {"known": True})
        monkeypatch.setattr(os, "write", write)
        status, answer = await app.publish(0, (0, "a", 5))
        assert (status, answer["messages"]) == (200, 5)
        assert await bodies_of(api, "t", 5) == [b"%d" % seq for seq in range(5)]
        assert (await api.get("/ping")).status == 200


async def test_a_topic_deleted_meanwhile_takes_its_share_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "PIECE", 40)  # a record
    async with running(tmp_path) as api:
        app = App(api)
        for seq in range(4):
            await app.put(0, [b"%d" % seq], seq=seq, topic="tu"[seq % 2])
        store = publication.Publication._store

        def delete_then_store(self: Any, *arguments: Any) -> None:
            store(self, *arguments)
            if "t" in api.broker.topics:
                api.broker.delete_topic("t")

        monkeypatch.setattr(publication.Publication, "_store", delete_then_store)
        assert (await app.publish(0, (0, "a", 4)))[1]["messages"] == 4
        assert "t" not in api.broker.topics
        assert await bodies_of(api, "u", 2) == [b"1", b"3"]


async def test_the_log_is_kept_from_where_a_batch_begins(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=200) as api:
        for number in range(5):
            await App(api).published(number, [b"x" * 200])
        topic = api.broker.topics["t"]
        topic.holds["a batch"] = 2
        assert len(await bodies_of(api, "t", 5)) == 5
        topic.trimming.run(time.time())
        assert topic.log.first == 2
        del topic.holds["a batch"]
        topic.trimming.run(time.time())
        assert topic.log.first == 4


async def test_a_piece_that_a_power_cut_has_taken_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"first", b"second", b"third"]
    (tmp_path / "before").mkdir()
    async with running(tmp_path / "before") as api:
        topic = api.broker.topic("t")
        await api.broker.syncer.sync_now(topic)
        app = App(api)
        for seq, body in enumerate(bodies):
            assert (await app.put(1, [body], seq=seq))[0] == 200
        real = api.broker.syncer.sync_now

        async def cut(topic: Topic) -> None:
            """All pieces are written, and none is synced."""
            shutil.copytree(tmp_path / "before", tmp_path / "after")
            await real(topic)

        monkeypatch.setattr(api.broker.syncer, "sync_now", cut)
        assert (await app.publish(1, (0, "a", 3)))[0] == 200
    # The disk has kept the pieces before and behind this one.
    (log,) = (tmp_path / "after" / "topics" / "t").glob("*.log")
    data = log.read_bytes()
    start, end = data.index(b"NQB1", 1), data.rindex(b"NQB1")
    log.write_bytes(data[:start].ljust(end, b"\0") + data[end:])
    async with running(tmp_path / "after") as api:
        app = App(api)
        await until(lambda: api.broker.staging.folder.apps["app"].publication is None)
        assert sorted(await bodies_of(api, "t", 3)) == sorted(bodies)
