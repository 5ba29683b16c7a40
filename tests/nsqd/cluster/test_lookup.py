"""nsqd among nsqlookupds: what it tells them, and that none of them can make it wait."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nsquark.nsqd.cluster import lookup_connection
from tests.daemon import PATIENCE
from tests.nsqd.api import Api, running
from tests.nsqd.lookupds import ScriptedLookupd, lookupds, set_lookupds

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


async def test_a_stop_is_seen_as_the_end_of_the_connection(tmp_path: Path, lookupd: ScriptedLookupd) -> None:
    async with running(tmp_path, lookupd_tcp_address=[lookupd.address]) as api:
        await api.done("/topic/create?topic=t")
        call = await lookupd.called()
        await lookupd.until(lambda: call.lines == ["REGISTER t"])
    async with asyncio.timeout(PATIENCE):
        await call.ended.wait()
    assert call.lines == ["REGISTER t"]
    assert len(lookupd.calls) == 1
