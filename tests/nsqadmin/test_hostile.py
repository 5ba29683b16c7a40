"""Daemons that lie, dawdle and flood: pages and `/api` say what is wrong, and none of them breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsquark.nsqadmin.upstream import client
from tests.http.web import Got, Web, answer
from tests.nsqadmin.served import Admin, serving

EVIL = "\"'><img src=x onerror=alert(1)>"
PAGES = (
    "/", "/topics/t", "/topics/t/c", "/nodes", "/counter", "/lookup", "/pipelines", "/search?q=t",
    "/peek?topic=t", "/dead?topic=t&channel=c", "/seek?topic=t&channel=c", "/act?do=publish&topic=t",
)  # fmt: skip
API = ("/api/topics", "/api/topics?inactive=true", "/api/topics/t", "/api/topics/t/c", "/api/nodes",
       "/api/counter")  # fmt: skip

NSQD = ("/stats", "/channel/reports", "/channel/peek", "/topic/peek", "/info")
TOPIC = ("topic_name", "depth", "backend_depth", "message_count", "e2e_processing_latency", "paused")
CHANNEL = (
    "channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count", "message_count",
    "requeue_count", "timeout_count", "client_count", "paused", "e2e_processing_latency", "clients",
    "dead_letter_count",
)  # fmt: skip
CLIENT = ("client_id", "hostname", "user_agent", "remote_address", "connect_ts", "tls", "authed")


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


def told(document: object) -> bytes:
    return answer(200, body=json.dumps(document).encode())


def flags(web: Web) -> tuple[str, ...]:
    return (f"--lookupd-http-address={web.url.partition('//')[2]}", "--http-client-request-timeout=400ms")


def producer(web: Web, **fields: object) -> dict[str, Any]:
    """The server itself, as an nsqlookupd tells of an nsqd."""
    address = {"broadcast_address": "127.0.0.1", "http_port": int(web.url.rpartition(":")[2])}
    return {"hostname": "h", "tcp_port": 1, "version": "1.3.0", "topics": ["t"], **address, **fields}


def register(web: Web, *producers: dict[str, Any]) -> None:
    web.answers["/topics"] = told({"topics": ["t"]})
    web.answers["/nodes"] = told({"producers": producers})
    web.answers["/lookup"] = told({"channels": ["c"], "producers": producers})


async def nothing_breaks(admin: Admin, statuses: tuple[int, ...] = (200, 404, 502)) -> None:
    for path in (*PAGES, *API):
        got = await admin.get(path)
        assert got.status in statuses, (path, got)
        if path not in API:
            assert b"<img" not in got.body, path


@pytest.mark.parametrize(
    "wrong", [None, True, -1, 1e300, 1 << 70, EVIL, "\ud800", [], [None], [[]], {}, {"a": [1]}], ids=repr
)
async def test_a_value_of_another_type_is_borne_wherever_it_stands(web: Web, wrong: object) -> None:
    channel = dict.fromkeys(CHANNEL, wrong)
    clients = [dict.fromkeys(CLIENT, wrong), wrong]
    topic = dict.fromkeys(TOPIC, wrong)
    channels = [channel, {**channel, "channel_name": "c", "clients": clients}]
    topics = [wrong, {**topic, "channels": wrong}, {**topic, "topic_name": "t", "channels": channels}]
    stats = {"health": wrong, "start_time": wrong, "topics": topics}
    odd = dict.fromkeys(("hostname", "version", "topics", "tombstones", "remote_address"), wrong)
    register(web, producer(web), producer(web, **odd))
    web.answers |= dict.fromkeys(NSQD, told(stats))
    async with serving(*flags(web)) as admin:
        await nothing_breaks(admin)
    web.answers |= dict.fromkeys((*NSQD, "/topics", "/nodes", "/lookup"), told(wrong))
    async with serving(*flags(web)) as admin:
        await nothing_breaks(admin)


async def test_an_address_that_is_none_is_named_and_costs_the_others_nothing(web: Web) -> None:
    wrong = [
        producer(web, broadcast_address=EVIL, tcp_port=2),
        producer(web, broadcast_address="a\r\nX-Evil: 1", tcp_port=3),
        producer(web, broadcast_address="/etc/passwd", tcp_port=4),
        producer(web, http_port=-1, tcp_port=5),
        producer(web, http_port=1 << 20, tcp_port=6),
    ]
    register(web, producer(web), *wrong)
    web.answers["/stats"] = told({"topics": [{"topic_name": "t", "depth": 7, "channels": []}]})
    async with serving(*flags(web)) as admin:
        topic = await admin.json("/api/topics/t")
        assert topic["depth"] == 7
        assert topic["message"].startswith("WARNING: ")
        assert topic["message"].count("\n") == len(wrong) - 1 + 1  # a line each, and the break in a name
        await nothing_breaks(admin)
    assert all("x-evil" not in got.headers for got in web.got)


async def test_a_redirect_is_followed_nowhere(web: Web) -> None:
    async with Web() as elsewhere:
        register(web, producer(web))
        web.answers["/stats"] = answer(302, f"Location: {elsewhere.url}/stats")
        async with serving(*flags(web)) as admin:
            answered = await admin.get("/api/topics/t")
            assert (answered.status, "302" in answered.json["message"]) == (502, True)
            await nothing_breaks(admin)
        assert elsewhere.got == []


async def test_an_answer_that_drips_is_given_up(web: Web) -> None:
    async def drip(_got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    register(web, producer(web))
    web.answers["/stats"] = drip
    async with serving(*flags(web)) as admin:
        answered = await admin.get("/api/topics/t")
        assert answered.status == 502
        assert "in time" in answered.json["message"]
        assert (await admin.get("/")).status == 200  # with the nsqd as one that does not answer


async def test_an_answer_without_end_is_cut_off(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER", 1 << 20)

    async def flood(_got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"[" * 65536 + b"\r\n")
            await writer.drain()

    register(web, producer(web))
    web.answers["/stats"] = flood
    async with serving(flags(web)[0], "--http-client-request-timeout=30s") as admin:
        answered = await admin.get("/api/topics/t")
        assert answered.status == 502
        assert "more than 1048576 bytes" in answered.json["message"]


async def test_an_nsqd_that_hangs_holds_up_no_other_request(web: Web) -> None:
    async def hang(_got: Got, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    register(web, producer(web))
    web.answers["/stats"] = hang
    async with serving(flags(web)[0], "--http-client-request-timeout=60s") as admin:
        waiting = [asyncio.ensure_future(admin.get("/api/topics/t")) for _ in range(50)]
        waiting += [asyncio.ensure_future(admin.get("/api/counter")) for _ in range(50)]
        await asyncio.sleep(0)
        assert (await admin.json("/api/topics"))["topics"] == ["t"]
        assert len((await admin.json("/api/nodes"))["nodes"]) == 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
