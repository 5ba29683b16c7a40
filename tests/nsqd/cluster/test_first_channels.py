"""A new topic begins with the channels that nsqlookupds know of."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from nsquark.nsqd.cluster import first_channels
from tests.daemon import PATIENCE, until
from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import ScriptedLookupd, identified, lookupds


async def depths(api: Api, topic: str) -> dict[str, int]:
    found = await api.topic(topic)
    return {"": found["depth"]} | {each["channel_name"]: each["depth"] for each in found["channels"]}


async def test_a_new_topic_begins_with_the_channels_that_are_known(tmp_path: Path) -> None:
    async with lookupds(2) as (one, two):
        two.channels = ["archive", "billing"]
        one.channels = ["archive", "tail#ephemeral", "bad name", ""]
        addresses = [one.address, two.address]
        async with running(tmp_path, lookupd_tcp_address=addresses) as api:
            await identified(api, 2)
            await api.done("/topic/create?topic=orders%23ephemeral")
            assert sorted(api.broker.topics["orders#ephemeral"].channels) == ["archive", "billing"]
            assert one.requests == two.requests == ["/channels?topic=orders%23ephemeral"]
            calls = await asyncio.gather(one.called(), two.called())
            for call in calls:
                await call.lookupd.until(lambda: len(call.lines) == 3)  # noqa: B023
                assert call.lines == [
                    "REGISTER orders#ephemeral",
                    "REGISTER orders#ephemeral archive",
                    "REGISTER orders#ephemeral billing",
                ]


async def test_publishers_do_not_wait_for_the_channels_and_no_message_misses_them(
    api: Api, lookupd: ScriptedLookupd
) -> None:
    lookupd.channels = ["archive"]
    lookupd.may_answer_get.clear()
    client = await api.client()
    await client.pub("orders", b"first")
    await client.mpub("orders", [b"second", b"third"])
    await client.dpub("orders", 1, b"deferred")
    await api.done("/pub?topic=orders", b"fourth")
    await client.sub("orders", "own", rdy=10)
    await lookupd.until(lambda: lookupd.requests)
    assert await depths(api, "orders") == {"": 5, "own": 0}
    lookupd.may_answer_get.set()
    bodies = {(await client.message()).body for _ in range(5)}
    assert bodies == {b"first", b"second", b"third", b"fourth", b"deferred"}
    topic = api.broker.topics["orders"]
    assert topic.depth == 0
    assert topic.channels["archive"].message_count == 5


async def test_a_lookupd_that_does_not_answer_delays_the_flow_only_so_long(
    tmp_path: Path, lookupd: ScriptedLookupd
) -> None:
    lookupd.may_answer_get.clear()
    changes = {"lookupd_tcp_address": [lookupd.address], "http_client_request_timeout": 0.1}
    async with running(tmp_path, **changes) as api:
        await identified(api)
        client = await api.client()
        await client.sub("orders", "own", rdy=10)
        await client.pub("orders", b"body")
        assert (await client.message()).body == b"body"
        # a burst of new topics: none waits for the others' turns
        began = time.monotonic()
        names = [f"topic{number}" for number in range(3 * first_channels.AT_ONCE)]
        for name in names:
            await client.pub(name, b"body")
        await until(lambda: not any(api.broker.topics[name].starting for name in names))
        assert time.monotonic() - began < PATIENCE


GET_LIES = {
    "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK",
    "no channels": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "null": b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"channels":null}',
    "numbers": b'HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n{"channels":[1,[]]}',
    "huge": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (2 << 20),
    "no HTTP": b"\0" * 1000,
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "nothing": b"",
    "forbidden": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 16\r\n\r\n" + b'{"https_port":0}',
}


@pytest.mark.parametrize("lie", GET_LIES)
async def test_a_lie_about_channels_is_only_logged(tmp_path: Path, lie: str) -> None:
    async with lookupds(2) as (liar, honest):
        liar.answer_get = GET_LIES[lie]
        honest.channels = ["archive"]
        addresses = [liar.address, honest.address]
        async with running(tmp_path, lookupd_tcp_address=addresses) as api:
            await identified(api, 2)
            await api.done("/topic/create?topic=orders")
            assert list(api.broker.topics["orders"].channels) == ["archive"]
            assert not api.broker.topics["orders"].starting


async def test_not_every_number_of_channels_is_believed(api: Api, lookupd: ScriptedLookupd) -> None:
    lookupd.channels = [f"channel{number}" for number in range(20_000)]
    await api.done("/topic/create?topic=orders")
    assert len(api.broker.topics["orders"].channels) == first_channels.MAX_CHANNELS


async def test_a_topic_may_be_deleted_before_its_channels_are_known(
    api: Api, lookupd: ScriptedLookupd
) -> None:
    lookupd.channels = ["archive"]
    lookupd.may_answer_get.clear()
    client = await api.client()
    await client.pub("orders", b"lost")
    await lookupd.until(lambda: len(lookupd.requests) == 1)
    await api.done("/topic/delete?topic=orders")
    await client.pub("orders", b"kept")
    await lookupd.until(lambda: len(lookupd.requests) == 2)
    lookupd.may_answer_get.set()
    await client.sub("orders", "archive", rdy=1)
    assert (await client.message()).body == b"kept"


async def test_nothing_is_lost_if_it_stops_before_the_channels_are_known(
    tmp_path: Path, lookupd: ScriptedLookupd
) -> None:
    lookupd.may_answer_get.clear()
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]) as api:
        await identified(api)
        client = await api.client()
        await client.pub("orders", b"before")
        await client.sub("orders", "own")
        await client.pub("orders", b"after")
        await lookupd.until(lambda: lookupd.requests)
    async with running(tmp_path) as api:
        client = await api.client()
        await client.sub("orders", "own", rdy=10)
        assert [(await client.message()).body for _ in range(2)] == [b"before", b"after"]


async def test_a_topic_from_the_disk_does_not_ask(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    async with running(tmp_path) as api:
        await api.done("/topic/create?topic=old")
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]) as api:
        await identified(api)
        await api.done("/topic/create?topic=new")
        assert lookupd.requests == ["/channels?topic=new"]


async def test_without_a_usable_lookupd_a_topic_starts_at_once(tmp_path: Path) -> None:
    async with lookupds(1) as (gone,):
        pass
    async with running(tmp_path, lookupd_tcp_address=[gone.address]) as api:
        await api.broker.lookup.settled()
        client = await api.client()
        await client.sub("orders", "own", rdy=1)
        assert not api.broker.topics["orders"].starting
        await client.pub("orders", b"body")
        assert (await client.message()).body == b"body"


async def test_a_topic_created_before_the_first_answer_of_a_lookupd_gets_its_channels(
    tmp_path: Path, lookupd: ScriptedLookupd, caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd takes publishes as soon as it listens, which is before its lookupds have told their names."""
    lookupd.channels = ["archive"]
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]) as api:
        api.broker.topic("orders")  # in the same turn in which nsqd began to listen
        assert api.broker.topics["orders"].starting
        await api.done("/pub?topic=orders", b"first")
        await until(lambda: not api.broker.topics["orders"].starting)
        assert await depths(api, "orders") == {"": 0, "archive": 1}
        assert "no available nsqlookupds" not in caplog.text


async def test_a_lookupd_that_cannot_be_reached_at_the_start_holds_a_topic_back_no_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with lookupds(1) as (lookupd,):
        address = lookupd.address
    async with running(tmp_path, lookupd_tcp_address=[address]) as api:
        client = await api.client()
        await client.sub("orders", "c", rdy=1)
        await api.done("/pub?topic=orders", b"first")
        assert (await client.message()).body == b"first"
        assert "no available nsqlookupds to query for channels to pre-create for topic orders" in caplog.text


async def test_an_ephemeral_topic_keeps_what_waits_for_its_channels_within_its_memory(
    tmp_path: Path, lookupd: ScriptedLookupd
) -> None:
    lookupd.may_answer_get.clear()
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address], mem_queue_size=10) as api:
        await identified(api)
        client = await api.client()
        await client.sub("x#ephemeral", "own", rdy=100)
        for number in range(100):
            await client.pub("x#ephemeral", b"%d" % number)
        topic = api.broker.topics["x#ephemeral"]
        assert topic.depth <= 10
        lookupd.may_answer_get.set()
        assert [(await client.message()).body for _ in range(10)] == [b"%d" % number for number in range(10)]
