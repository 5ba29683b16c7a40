"""Connections of browsers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack

import pytest

from nsquark.nsqadmin import connection
from nsquark.nsqadmin.api import answers
from nsquark.nsqadmin.options import Options
from nsquark.nsqadmin.server import Server
from tests.daemon import PATIENCE, until
from tests.http.web import Web, answer
from tests.nsqadmin.served import Admin, free_address, serving

NSQD = f"--nsqd-http-address={free_address()}"
PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"


async def connect(admin: Admin) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = admin.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server hangs up."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_a_head_without_end_is_cut_off() -> None:
    async with serving(NSQD) as admin:
        reader, writer = await connect(admin)
        writer.write(b"GET /ping HTTP/1.1\r\n")
        sent = 0
        while not writer.is_closing() and sent < 1000:
            writer.write(b"X-Header: %b\r\n" % (b"x" * 1000))
            await asyncio.sleep(0)
            sent += 1
        assert b"200" not in await end(reader)
        writer.close()
        assert (await admin.get("/ping")).status == 200


@pytest.mark.parametrize("begun", [b"", b"GET /ping HT", PING + b"GET /pi"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 0.2)
    async with serving(NSQD) as admin:
        reader, writer = await connect(admin)
        writer.write(begun)
        await end(reader)
        writer.close()


async def test_one_connection_serves_many_requests() -> None:
    async with serving(NSQD) as admin:
        reader, writer = await connect(admin)
        for _ in range(100):  # more than MAX_HEAD bytes of heads in all
            writer.write(PING[:-2] + b"X-Header: %b\r\n\r\n" % (b"x" * 1000))
            async with asyncio.timeout(PATIENCE):
                assert (await reader.readuntil(b"OK")).startswith(b"HTTP/1.1 200")
                assert (await reader.readuntil(b"\r\n\r\nOK")).endswith(b"OK")
        writer.close()


async def test_what_is_no_http_is_refused() -> None:
    async with serving(NSQD) as admin:
        reader, writer = await connect(admin)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
        assert (await end(reader)).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_a_browser_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_TIMEOUT", 0.2)
    topics = [{"topic_name": f"{number:060d}"} for number in range(20_000)]
    async with Web() as web:
        web.answers["/stats"] = answer(200, body=json.dumps({"topics": topics}).encode())
        server = Server(Options(http_address="127.0.0.1:0", nsqd_http_address=[web.url.partition("//")[2]]))
        await server.start()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", server.http_port))
            await loop.sock_sendall(sock, b"GET /api/topics HTTP/1.1\r\nHost: a\r\n\r\n" * 10)
            await until(lambda: web.got)
            await until(lambda: not server.connection_count)
        await server.stop()


async def test_browsers_that_take_nothing_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_UNSENT", 1 << 20)
    topics = [f"{number:060d}" for number in range(100_000)]
    async with Web() as web, AsyncExitStack() as stack:
        web.answers["/topics"] = answer(200, body=json.dumps({"topics": topics}).encode())
        options = Options(http_address="127.0.0.1:0", lookupd_http_address=[web.url.partition("//")[2]])
        server = Server(options)
        await server.start()
        stack.push_async_callback(server.stop)
        loop = asyncio.get_running_loop()
        for number in range(12):  # with 6 MB each, of which the system takes some
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", server.http_port))
            await loop.sock_sendall(sock, b"GET /api/topics HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(lambda number=number: len(web.got) > number)
        await until(lambda: server.connection_count < 3)
        # A browser that does read is served meanwhile.
        assert (await Admin(f"127.0.0.1:{server.http_port}").get("/api/topics")).status == 200


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_TIMEOUT", 0.2)
    async with serving(NSQD) as admin:
        reader, writer = await connect(admin)
        writer.write(b"POST /api/topics HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        assert (await end(reader)).startswith(b"HTTP/1.1 408")
        writer.close()


class Wire:
    """A transport that writes down what it is told."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


async def test_head_and_body_are_one_write() -> None:
    wire = Wire()
    joined = connection.JoinedWrites(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joined.write(b"head")
    joined.write(b"body")
    assert wire.done == []
    joined.close()
    assert wire.done == [b"headbody", "close"]


async def test_what_is_streamed_does_not_wait_for_its_end() -> None:
    wire = Wire()
    joined = connection.JoinedWrites(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    for piece in (b"first", b"second"):
        joined.write(piece)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert wire.done == [b"first", b"second"]


async def test_what_was_held_back_is_lost_with_the_connection_alone() -> None:
    wire = Wire()
    joined = connection.JoinedWrites(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joined.write(b"head")
    joined.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.done == ["abort"]
