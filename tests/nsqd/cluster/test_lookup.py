"""nsqd among nsqlookupds: what it tells them, and that none of them can make it wait."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nsquark.nsqd.cluster import first_channels as known_channels
from nsquark.nsqd.cluster import lookup_connection, lookup_peer
from tests.daemon import PATIENCE, sized, until
from tests.http.test_client import answering
from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import OK, ScriptedLookupd, lookupds
from tests.security.certificates import Authority


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    for delay in ("FIRST_DELAY", "LONGEST_DELAY", "LONGEST_REST"):
        monkeypatch.setattr(lookup_peer, delay, 0.01)


@pytest.fixture
async def lookupd() -> AsyncIterator[ScriptedLookupd]:
    async with lookupds(1) as (lookupd,):
        yield lookupd


@pytest.fixture
async def api(tmp_path: Path, lookupd: ScriptedLookupd) -> AsyncIterator[Api]:
    """An nsqd that knows one lookupd, and is known to it."""
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address], broadcast_address="nsqd1") as api:
        await identified(api)
        yield api


async def identified(api: Api, number: int = 1) -> None:
    """Return when so many lookupds have said who they are."""

    def known() -> int:
        connections = [peer.connection for peer in api.broker.lookup._peers.values()]
        return sum(1 for connection in connections if connection is not None and connection.info is not None)

    await until(lambda: known() == number)


async def set_lookupds(api: Api, *found: ScriptedLookupd) -> None:
    addresses = json.dumps([lookupd.address for lookupd in found]).encode()
    answer = await api.put("/config/nsqlookupd_tcp_addresses", addresses)
    assert (answer.status, json.loads(answer.body)) == (200, json.loads(addresses))


# ---- what is told


async def test_it_says_who_it_is(api: Api, lookupd: ScriptedLookupd) -> None:
    call = await lookupd.called()
    assert call.document == {
        "broadcast_address": "nsqd1",
        "hostname": os.uname().nodename,
        "http_port": api.broker.http_port,
        "tcp_port": api.broker.tcp_port,
        "version": "1.3.0",
    }


async def test_the_broadcast_ports_are_told(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    changes = {"broadcast_tcp_port": 14150, "broadcast_http_port": 14151, "topology_zone": "z"}
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address], **changes):
        document = (await lookupd.called()).document
        assert (document["tcp_port"], document["http_port"]) == (14150, 14151)
        assert (document["topology_zone"], document["topology_region"]) == ("z", "")


async def test_everything_there_is_is_registered(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    async with running(tmp_path) as api:
        for path in (
            "/topic/create?topic=lonely",
            "/topic/create?topic=orders",
            "/channel/create?topic=orders&channel=archive",
            "/channel/create?topic=orders&channel=tail%23ephemeral",
            "/topic/create?topic=x%23ephemeral",
        ):
            await api.done(path)
        await set_lookupds(api, lookupd)
        call = await lookupd.called()
        await lookupd.until(lambda: len(call.lines) == 4)
        assert sorted(call.lines) == [
            "REGISTER lonely",
            "REGISTER orders archive",
            "REGISTER orders tail#ephemeral",
            "REGISTER x#ephemeral",
        ]


async def test_every_change_is_told(api: Api, lookupd: ScriptedLookupd) -> None:
    call = await lookupd.called()
    expected: list[str] = []
    for path, lines in (
        ("/topic/create?topic=t", ["REGISTER t"]),
        ("/channel/create?topic=t&channel=a", ["REGISTER t a"]),
        ("/channel/create?topic=t&channel=b", ["REGISTER t b"]),
        ("/channel/create?topic=t&channel=b", []),
        ("/channel/delete?topic=t&channel=a", ["UNREGISTER t a"]),
        ("/topic/delete?topic=t", ["UNREGISTER t b", "UNREGISTER t"]),
        ("/pub?topic=again", ["REGISTER again"]),
    ):
        await api.done(path, b"body")
        expected += lines
        await lookupd.until(lambda: len(call.lines) >= len(expected))  # noqa: B023 - called within the turn
        assert call.lines == expected


async def test_what_goes_by_itself_is_told_too(api: Api, lookupd: ScriptedLookupd) -> None:
    call = await lookupd.called()
    consumer = await api.client()
    await consumer.sub("x#ephemeral", "y#ephemeral")
    consumer.close()
    await lookupd.until(lambda: len(call.lines) == 4)
    assert call.lines == [
        "REGISTER x#ephemeral",
        "REGISTER x#ephemeral y#ephemeral",
        "UNREGISTER x#ephemeral y#ephemeral",
        "UNREGISTER x#ephemeral",
    ]


async def test_a_burst_of_changes_is_told_once_for_each_name(api: Api, lookupd: ScriptedLookupd) -> None:
    """What was created and deleted before it could be told is told as it is now."""
    call = await lookupd.called()
    broker = api.broker
    for _ in range(10):
        broker.topic("t").channel("c")
        broker.delete_topic("t")
    for number in range(1000):
        broker.topic(f"topic{number}")
    await lookupd.until(lambda: len(call.lines) == 1002)
    assert sorted(call.lines[:2]) == ["UNREGISTER t", "UNREGISTER t c"]
    assert call.lines[2:] == [f"REGISTER topic{number}" for number in range(1000)]


async def test_silence_is_filled_with_pings(
    tmp_path: Path, lookupd: ScriptedLookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_connection, "PING_INTERVAL", 0.01)
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]):
        call = await lookupd.called()
        await lookupd.until(lambda: call.lines == ["PING"] * 5)


# ---- coming and going


async def test_a_lookupd_that_comes_back_hears_everything_again(api: Api, lookupd: ScriptedLookupd) -> None:
    await api.done("/topic/create?topic=t")
    for number in (1, 2, 3):
        call = await lookupd.called(number)
        await lookupd.until(lambda: call.lines == ["REGISTER t"])  # noqa: B023 - called within the turn
        call.hang_up()
    await lookupd.close()
    await api.done("/topic/create?topic=u")
    await api.done("/topic/delete?topic=t")
    await lookupd.listen()
    call = await lookupd.called(4)
    await lookupd.until(lambda: call.lines == ["REGISTER u"])


async def test_the_list_can_be_changed(tmp_path: Path) -> None:
    async with lookupds(3) as (one, two, three), running(tmp_path) as api:
        await api.done("/topic/create?topic=t")
        await set_lookupds(api, one, two)
        await asyncio.gather(one.called(), two.called())
        await set_lookupds(api, two, three, two)
        await three.called()
        async with asyncio.timeout(PATIENCE):
            await one.calls[0].ended.wait()
        await api.done("/topic/create?topic=u")
        for lookupd in (two, three):
            (call,) = lookupd.calls
            await lookupd.until(lambda: call.lines == ["REGISTER t", "REGISTER u"])  # noqa: B023
            assert not call.ended.is_set()
        assert len(one.calls) == 1
        await set_lookupds(api)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(two.calls[0].ended.wait(), three.calls[0].ended.wait())


async def test_an_address_that_is_none_does_no_harm(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    addresses = ["", "nowhere", "no.such.host.invalid:4160", "127.0.0.1:0", "a:b:c", "\0:1", lookupd.address]
    async with running(tmp_path, lookupd_tcp_address=addresses) as api:
        await lookupd.called()
        await identified(api)
        await api.done("/pub?topic=t", b"body")


async def test_a_stop_is_seen_as_the_end_of_the_connection(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]) as api:
        await api.done("/topic/create?topic=t")
        call = await lookupd.called()
        await lookupd.until(lambda: call.lines == ["REGISTER t"])
    async with asyncio.timeout(PATIENCE):
        await call.ended.wait()
    assert call.lines == ["REGISTER t"]
    assert len(lookupd.calls) == 1


# ---- lookupds that hang or lie

LIES: dict[str, Callable[[ScriptedLookupd], None]] = {
    "old": lambda lookupd: setattr(lookupd, "answer_identify", sized(b"E_INVALID")),
    "no JSON": lambda lookupd: setattr(lookupd, "answer_identify", OK),
    "list": lambda lookupd: setattr(lookupd, "answer_identify", sized(b"[1]")),
    "wrong types": lambda lookupd: setattr(lookupd, "answer_identify", sized(b'{"http_port":"x"}')),
    "negative": lambda lookupd: setattr(lookupd, "answer_identify", struct.pack(">i", -1)),
    "huge": lambda lookupd: setattr(lookupd, "answer_identify", struct.pack(">i", (1 << 31) - 1)),
    "garbage": lambda lookupd: setattr(lookupd, "answer_identify", os.urandom(1000)),
    "two answers": lambda lookupd: setattr(lookupd, "answer_line", lambda line: OK + OK),
    "huge later": lambda lookupd: setattr(lookupd, "answer_line", lambda line: b"\x7f" * 1000),
    "silent": lambda lookupd: setattr(lookupd, "answer_identify", b""),
    "silent later": lambda lookupd: setattr(lookupd, "answer_line", lambda line: b""),
    "does not read": lambda lookupd: setattr(lookupd, "reads", False),
    "half an answer": lambda lookupd: setattr(lookupd, "answer_line", lambda line: OK[:5]),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lookupd_that_lies_is_given_up_and_tried_again(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_connection, "ANSWER_WITHIN", 0.05)
    async with lookupds(2) as (liar, honest):
        LIES[lie](liar)
        addresses = [liar.address, honest.address]
        async with running(tmp_path, lookupd_tcp_address=addresses) as api:
            client = await api.client()
            await client.pub("orders", b"body")
            await liar.until(lambda: len(liar.calls) >= 3)
            await client.pub("events", b"body")
            await honest.until(lambda: honest.calls and len(honest.calls[0].lines) == 2)
            assert honest.calls[0].lines == ["REGISTER orders", "REGISTER events"]


async def test_an_error_is_logged_and_is_no_reason_to_stop(
    api: Api, lookupd: ScriptedLookupd, caplog: pytest.LogCaptureFixture
) -> None:
    lookupd.answer_line = lambda line: sized(b"E_BAD_TOPIC " + line.encode())
    call = await lookupd.called()
    await api.done("/topic/create?topic=t")
    await until(lambda: "answered b'E_BAD_TOPIC REGISTER t'" in caplog.text)
    lookupd.answer_line = lambda line: OK
    await api.done("/topic/create?topic=u")
    await lookupd.until(lambda: call.lines == ["REGISTER t", "REGISTER u"])


async def test_ten_thousand_topics_cost_a_stuck_lookupd_nothing(tmp_path: Path) -> None:
    """It has answered IDENTIFY and then nothing: what is on its way to it stays small."""
    async with lookupds(1) as (stuck,), running(tmp_path) as api:
        stuck.answer_line = lambda line: b""
        await set_lookupds(api, stuck)
        await identified(api)
        (peer,) = api.broker.lookup._peers.values()
        connection = peer.connection
        assert connection is not None
        for number in range(10_000):
            api.broker.lookup.changed(f"topic{number}", "channel")
        await stuck.until(lambda: len(stuck.calls[0].lines) >= lookup_connection.WINDOW)
        assert connection._unanswered == lookup_connection.WINDOW
        assert connection._transport is None or connection._transport.get_write_buffer_size() == 0
        await api.done("/pub?topic=t", b"body")


# ---- channels of new topics


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
        names = [f"topic{number}" for number in range(3 * known_channels.AT_ONCE)]
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


async def test_a_lookupd_that_wants_tls_is_asked_with_tls(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    body = b'{"channels":["archive"]}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    authority = Authority(tmp_path / "certificates")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.sign("lookupd"))
    async with answering(answer, tls=context) as (url, heads):
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % int(url.rpartition(":")[2])
        lookupd.answer_get = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        changes = {
            "lookupd_tcp_address": [lookupd.address],
            "tls_root_ca_file": str(authority.folder / "ca.pem"),
        }
        async with running(tmp_path, **changes) as api:
            await identified(api)
            await api.done("/topic/create?topic=orders")
            assert list(api.broker.topics["orders"].channels) == ["archive"]
    assert heads[0].startswith(b"GET /channels?topic=orders HTTP/1.1\r\n")


async def test_not_every_number_of_channels_is_believed(api: Api, lookupd: ScriptedLookupd) -> None:
    lookupd.channels = [f"channel{number}" for number in range(20_000)]
    await api.done("/topic/create?topic=orders")
    assert len(api.broker.topics["orders"].channels) == known_channels.MAX_CHANNELS


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
        client = await api.client()
        await client.sub("orders", "own", rdy=1)
        assert not api.broker.topics["orders"].starting
        await client.pub("orders", b"body")
        assert (await client.message()).body == b"body"


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
