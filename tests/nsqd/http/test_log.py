"""`/log/range`, `/log/read`, and moving channels, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsquark.kernel import pure
from nsquark.log import segment
from nsquark.nsqd.http import log as http_log
from tests.daemon import until
from tests.http.served import Answer, get
from tests.nsqd.api import Api, running


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


class Read(NamedTuple):
    position: int
    epoch: str
    batches: bytes
    bodies: list[bytes]


def parse_read(answer: Answer) -> Read:
    """Take an answer of /log/read apart as the documentation says, checking every CRC."""
    assert answer.status == 200, answer
    magic, count, position, epoch, length = struct.unpack_from(">4sIQQQ", answer.body)
    assert magic == b"NQR1"
    assert len(answer.body) == 32 + length + 4 * count
    batches, index = answer.body[32 : 32 + length], answer.body[32 + length :]
    at = 0
    while at < length:
        crc, size = struct.unpack_from(">II", batches, at + 4)
        assert crc == pure.crc32c(batches, at + 8, at + size)
        at += size
    bodies = []
    for (offset,) in struct.iter_unpack(">I", index):
        (size,) = struct.unpack_from(">I", batches, offset)
        bodies.append(batches[offset + 34 : offset + 4 + size])
    return Read(position, f"{epoch:016x}", batches, bodies)


async def read(api: Api, query: str) -> Read:
    return parse_read(await api.get(f"/log/read?topic=t{query}"))


async def told(api: Api, path: str, method: str = "GET") -> Any:
    answer = await (api.get(path) if method == "GET" else api.post(path))
    assert answer.status == 200, answer
    return json.loads(answer.body)


async def publish(api: Api, *bodies: bytes, topic: str = "t") -> None:
    for body in bodies:
        await api.done(f"/pub?topic={topic}", body)


# ---- range


async def test_a_range_says_which_log_it_is_and_where_it_ends(api: Api) -> None:
    await publish(api, b"one", b"two")
    first = await told(api, "/log/range?topic=t")
    assert first["node"] == api.broker.node.uuid
    assert (first["topic"], first["first"], first["next"]) == ("t", 0, 2)
    assert len(first["epoch"]) == 16
    assert first["bytes"] == 2 * (48 + 34 + 3)
    await until(lambda: api.broker.topics["t"].synced == 2, within=20)
    assert (await told(api, "/log/range?topic=t"))["synced"] == 2


async def test_a_topic_that_was_created_again_has_another_epoch(api: Api) -> None:
    await publish(api, b"one")
    before = await told(api, "/log/range?topic=t")
    await api.done("/topic/delete?topic=t")
    await publish(api, b"two")
    after = await told(api, "/log/range?topic=t")
    assert after["epoch"] != before["epoch"]
    assert after["first"] >= before["next"]
    for path in ("/log/range?topic=t", "/log/read?topic=t&from=0", "/topic/peek?topic=t"):
        answer = await api.get(f"{path}&epoch={before['epoch']}")
        assert answer.status == 409
        assert json.loads(answer.body) == {
            "message": "EPOCH_CHANGED",
            "epoch": after["epoch"],
            "first": after["first"],
            "next": after["next"],
        }
    assert (await api.get(f"/log/range?topic=t&epoch={after['epoch']}")).status == 200


@pytest.mark.parametrize("name", ["t", "t%23ephemeral"])
async def test_the_position_at_a_time(api: Api, name: str) -> None:
    await api.done(f"/topic/create?topic={name}")
    await publish(api, b"one", topic=name)
    await asyncio.sleep(0.002)  # another millisecond
    between = time.time_ns() // 1_000_000
    await publish(api, b"two", b"three", topic=name)
    for timestamp, position in ((0, 0), (between, 1), (between + 3_600_000, 3)):
        path = f"/log/range?topic={name}&timestamp_ms={timestamp}"
        assert (await told(api, path))["position"] == position


async def test_waiting_for_news(api: Api) -> None:
    await publish(api, b"one")
    assert (await told(api, "/log/range?topic=t&from=0&wait_ms=60000"))["next"] == 1
    assert (await told(api, "/log/range?topic=t&from=1&wait_ms=1"))["next"] == 1
    api.http.send(get("/log/range?topic=t&wait_ms=60000"))
    await until(lambda: api.broker.topics["t"].watchers)
    client = await api.client()
    await client.pub("t", b"two")
    answer = await api.http.answer()
    assert json.loads(answer.body)["next"] == 2
    assert not api.broker.topics["t"].watchers


async def test_waiting_ends_with_the_topic(api: Api) -> None:
    await publish(api, b"one")
    api.http.send(get("/log/range?topic=t&wait_ms=60000"))
    await until(lambda: api.broker.topics["t"].watchers)
    api.broker.delete_topic("t")
    answer = await api.http.answer()
    assert (answer.status, json.loads(answer.body)) == (404, {"message": "TOPIC_NOT_FOUND"})


async def test_a_commit_on_the_way(api: Api) -> None:
    await publish(api, b"one", b"two", b"three")
    await api.done("/channel/create?topic=t&channel=spark")
    answer = await told(api, "/log/range?topic=t&channel=spark&commit=2")
    assert answer["channel"] == {
        "channel_name": "spark",
        "position": 2,
        "next": 2,
        "moves": 0,
        "emptied": None,
        "depth": 1,
        "in_flight_count": 0,
        "deferred_count": 0,
    }
    answer = await told(api, "/log/range?topic=t&channel=spark&commit=1")
    assert answer["channel"]["position"] == 2
    assert (await api.topic("t"))["channels"][0]["depth"] == 1


# ---- read


async def test_what_was_published_is_read(api: Api) -> None:
    await publish(api, b"one", b"two")
    await api.done("/pub?topic=t&defer=60000", b"later")
    await publish(api, b"\x00\xff" * 300)
    whole = await read(api, "")
    assert whole.bodies == [b"one", b"two", b"later", b"\x00\xff" * 300]
    log = api.broker.topics["t"].log.directory
    assert log is not None
    assert whole.batches == b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))
    assert whole.epoch == (await told(api, "/log/range?topic=t"))["epoch"]
    part = await read(api, "&from=1&to=3")
    assert (part.position, part.bodies) == (1, [b"two", b"later"])
    assert (await read(api, "&from=4")).bodies == []
    assert (await read(api, "&from=2&to=2")).bodies == []
    assert (await read(api, "&from=0&to=99")).bodies == whole.bodies
    assert (await read(api, "&from=0&max_bytes=1")).bodies == [b"one"]


async def test_an_ephemeral_topic_is_read_from_memory(api: Api) -> None:
    name = "t%23ephemeral"
    await publish(api, b"one", b"two", b"three", topic=name)
    answer = parse_read(await api.get(f"/log/read?topic={name}&from=1"))
    assert answer.bodies == [b"two", b"three"]
    await api.done(f"/channel/create?topic={name}&channel=c")
    await told(api, f"/channel/commit?topic={name}&channel=c&to=2", "POST")
    api.broker.topics["t#ephemeral"].trimming.run(0.0)
    gone = await api.get(f"/log/read?topic={name}&from=1")
    assert (gone.status, json.loads(gone.body)["first"]) == (410, 2)
    await told(api, f"/channel/seek?topic={name}&channel=c&to=earliest", "POST")
    assert parse_read(await api.get(f"/log/read?topic={name}")).bodies == [b"three"]


async def test_a_large_range_over_many_segments(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1 << 20) as api:
        client = await api.client()
        bodies = [b"%d " % number + b"x" * 1000 for number in range(6000)]
        for first in range(0, len(bodies), 500):
            await client.mpub("t", bodies[first : first + 500])
        assert (await read(api, "&max_bytes=100000000")).bodies == bodies
        some = await read(api, "&from=777&max_bytes=3000000")
        assert some.bodies == bodies[777 : 777 + len(some.bodies)]
        assert 2_400_000 < len(some.batches) <= 3_000_000


async def test_without_an_index_the_batches_are_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1 << 20) as api:
        client = await api.client()
        for first in range(0, 6000, 500):
            await client.mpub("t", [b"%d " % number + b"x" * 1000 for number in range(first, first + 500)])
        await publish(api, b"one", b"two", topic="small%23ephemeral")
        for topic, query in [
            ("t", "&max_bytes=100000000"),
            ("t", "&from=777&max_bytes=3000000"),
            ("t", "&from=5999"),
            ("t", "&from=6000"),
            ("small%23ephemeral", "&from=1"),
        ]:
            whole = (await api.get(f"/log/read?topic={topic}{query}")).body
            bare = (await api.get(f"/log/read?topic={topic}{query}&index=0")).body
            count, length = struct.unpack_from(">4xI16xQ", whole)
            assert bare == whole[: 32 + length]
            assert len(whole) == len(bare) + 4 * count
        requests = [get("/ping"), get("/log/read?topic=t&index=0"), get("/ping")]
        api.http.send(b"".join(requests))
        answers = [await api.http.answer() for _ in requests]
        assert [answer.body for answer in answers[::2]] == [b"OK"] * 2
        assert len(answers[1].body) > 6_000_000


async def test_a_file_that_was_cut_off_ends_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        await publish(api, *[b"x" * 1_000_000] * 12)
        (path,) = (tmp_path / "topics" / "t").glob("*.log")
        client = await type(api.http).connect(api.broker.http_port)
        client.send(get("/log/read?topic=t&index=0&max_bytes=100000000"))
        await client.reader.readuntil(b"NQR1")
        os.truncate(path, 11_000_000)
        rest = await client.reader.read()
        assert len(rest) < 12_000_000
        client.close()


async def test_pipelined_requests_are_answered_in_order(api: Api) -> None:
    await publish(api, b"x" * 900_000, b"y" * 900_000)
    requests = [
        get("/ping"),
        get("/log/read?topic=t"),
        get("/ping"),
        get("/log/read?topic=t&from=1"),
        get("/ping"),
    ]
    api.http.send(b"".join(requests))
    answers = [await api.http.answer() for _ in requests]
    assert [answer.body for answer in answers[::2]] == [b"OK"] * 3
    assert [len(parse_read(answer).bodies) for answer in answers[1::2]] == [2, 1]


async def test_a_reader_behind_publishers_waits_for_its_turn(api: Api) -> None:
    await publish(api, b"one")
    body = b"POST /pub?topic=t HTTP/1.1\r\nHost: nsqd\r\nContent-Length: 3\r\n\r\ntwo"
    api.http.send(body * 3 + get("/log/read?topic=t"))
    for _ in range(3):
        assert (await api.http.answer()).body == b"OK"
    assert parse_read(await api.http.answer()).bodies == [b"one", b"two", b"two", b"two"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("index", [0, 1])
async def test_a_reader_that_goes_away_leaves_nothing(api: Api, index: int) -> None:
    await publish(api, *[b"x" * 1_000_000] * 12)
    assert (await read(api, "&max_bytes=1000")).bodies == [b"x" * 1_000_000]
    before = descriptors()
    client = await type(api.http).connect(api.broker.http_port)
    client.send(get(f"/log/read?topic=t&max_bytes=100000000&index={index}"))
    await client.reader.readexactly(1000)
    client.writer.transport.abort()
    await until(lambda: descriptors() <= before)
    assert (await read(api, "&max_bytes=1000")).bodies == [b"x" * 1_000_000]


async def test_a_range_stays_readable_while_it_is_read(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1 << 20) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        bodies = [b"%d" % number + b"x" * 1_000_000 for number in range(12)]
        await publish(api, *bodies)
        client = await type(api.http).connect(api.broker.http_port)
        client.send(get("/log/read?topic=t&max_bytes=100000000"))
        await client.reader.readuntil(b"NQR1")
        await told(api, "/channel/commit?topic=t&channel=c&to=12", "POST")
        topic = api.broker.topics["t"]
        await until(lambda: topic.log.first == 11)
        assert topic.log.directory is not None
        await until(lambda: len(list((topic.log.directory or tmp_path).glob("*.log"))) == 1)
        rest = await client.reader.readexactly(28 + 12 * (48 + 34 + 1_000_000) + 14 + 12 * 4)
        assert parse_read(Answer(200, {}, b"NQR1" + rest)).bodies == bodies
        client.close()


async def test_a_damaged_log_is_said_to_be(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1) as api:
        await publish(api, b"one", b"two")
        path = sorted((tmp_path / "topics" / "t").glob("*.log"))[0]
        path.write_bytes(b"NQB2" + path.read_bytes()[4:])
        answer = await api.get("/log/read?topic=t")
        assert (answer.status, json.loads(answer.body)) == (500, {"message": "LOG_UNREADABLE"})
        assert (await api.get("/ping")).status == 500
        assert (await read(api, "&from=1")).bodies == [b"two"]


async def test_too_many_readers_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(api, b"one")
    monkeypatch.setattr(http_log, "MAX_READERS", 0)
    answer = await api.get("/log/read?topic=t")
    assert (answer.status, json.loads(answer.body)) == (503, {"message": "TOO_MANY_READERS"})


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/log/range", 400, "MISSING_ARG_TOPIC"),
        ("/log/range?topic=nope", 404, "TOPIC_NOT_FOUND"),
        ("/log/range?topic=t&channel=nope", 404, "CHANNEL_NOT_FOUND"),
        ("/log/range?topic=t&channel=a%20b", 400, "INVALID_ARG_CHANNEL"),
        ("/log/range?topic=t&commit=1", 400, "MISSING_ARG_CHANNEL"),
        ("/log/range?topic=t&channel=c&commit=-1", 400, "INVALID_ARG_COMMIT"),
        ("/log/range?topic=t&channel=c&commit=9", 416, "POSITION_NOT_REACHED"),
        ("/log/range?topic=t&wait_ms=60001", 400, "INVALID_ARG_WAIT_MS"),
        ("/log/range?topic=t&wait_ms=x", 400, "INVALID_ARG_WAIT_MS"),
        ("/log/range?topic=t&from=1.5", 400, "INVALID_ARG_FROM"),
        ("/log/range?topic=t&timestamp_ms=99999999999999999999", 400, "INVALID_ARG_TIMESTAMP_MS"),
        ("/log/read?topic=nope", 404, "TOPIC_NOT_FOUND"),
        ("/log/read?topic=t&from=", 400, "INVALID_ARG_FROM"),
        ("/log/read?topic=t&from=3", 416, "POSITION_NOT_REACHED"),
        ("/log/read?topic=t&from=2&to=1", 400, "INVALID_ARG_TO"),
        ("/log/read?topic=t&max_bytes=99999999999", 400, "INVALID_ARG_MAX_BYTES"),
        ("/log/read?topic=t&index=2", 400, "INVALID_ARG_INDEX"),
        ("/log/read?topic=t&epoch=0", 409, "EPOCH_CHANGED"),
        ("/topic/peek?topic=t&limit=1001", 400, "INVALID_ARG_LIMIT"),
        ("/topic/peek?topic=t&from=3", 416, "POSITION_NOT_REACHED"),
        ("/channel/peek?topic=t&channel=c&state=gone", 400, "INVALID_ARG_STATE"),
        ("/channel/peek?topic=t&channel=nope", 404, "CHANNEL_NOT_FOUND"),
    ],
)
async def test_bad_questions(api: Api, path: str, status: int, message: str) -> None:
    await publish(api, b"one", b"two")
    await api.done("/channel/create?topic=t&channel=c")
    answer = await api.get(path)
    assert (answer.status, json.loads(answer.body)["message"]) == (status, message)


async def test_a_position_that_is_gone_is_told_with_both_ends(tmp_path: Path) -> None:
    async with running(tmp_path, max_bytes_per_file=1) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await publish(api, *[b"x"] * 5)
        await told(api, "/channel/commit?topic=t&channel=c&to=4", "POST")
        await until(lambda: api.broker.topics["t"].log.first == 4)
        for path in ("/log/read?topic=t&from=1", "/topic/peek?topic=t&from=1"):
            answer = await api.get(path)
            assert answer.status == 410
            detail = json.loads(answer.body)
            assert (detail["message"], detail["first"], detail["next"]) == ("POSITION_GONE", 4, 5)
        answer = await api.post("/channel/seek?topic=t&channel=c&to=1")
        assert (answer.status, json.loads(answer.body)["first"]) == (410, 4)


async def test_an_old_file_is_looked_into_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, max_bytes_per_file=5000) as api:
        await api.done("/topic/create?topic=t")
        await api.done("/channel/create?topic=t&channel=c")
        await publish(api, *[b"%d" % number + b"x" * 500 for number in range(20)])
        await told(api, "/channel/commit?topic=t&channel=c&to=3", "POST")
    monkeypatch.setattr(segment, "AT_ONCE", 0)
    async with running(tmp_path, max_bytes_per_file=5000) as api:
        client = await api.client()
        await client.sub("t", "c", rdy=100)
        bodies = [(await client.message()).body.split(b"x")[0] for _ in range(17)]
        assert bodies == [b"%d" % number for number in range(3, 20)]
