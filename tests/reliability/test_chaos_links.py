"""Links of reliability.chaos: bytes pass, are held one way or both, are late, or meet a closed door."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from reliability.chaos.links import Link


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Echo:
    """Sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
        self.news = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            async with self.news:
                self.got += data
                self.news.notify_all()
            writer.write(data)
        writer.close()

    async def has(self, data: bytes) -> None:
        async with self.news:
            await self.news.wait_for(lambda: self.got == data)


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Link, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    link = Link("echo", ("127.0.0.1", free_port()), server.sockets[0].getsockname()[:2])
    await link.open()
    try:
        yield link, echo
    finally:
        await link.close()
        server.close()


async def test_bytes_pass_both_ways_and_an_end_is_an_end() -> None:
    async with linked() as (link, _):
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_a_link_that_is_held_one_way_lets_the_other_pass() -> None:
    async with linked() as (link, echo):
        reader, writer = await asyncio.open_connection(*link.address)
        link.hold(there=False, back=True)
        writer.write(b"hello")
        await echo.has(b"hello")
        answer = asyncio.ensure_future(reader.readexactly(5))
        await asyncio.sleep(0)
        assert link.back.held
        assert not answer.done()
        await link.mend()
        assert await answer == b"hello"
        writer.close()


async def test_bytes_that_were_held_arrive_when_the_link_is_mended() -> None:
    async with linked() as (link, echo):
        link.hold()
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(b"late")
        assert echo.got == b""
        await link.mend()
        assert await reader.readexactly(4) == b"late"
        writer.close()


async def test_a_link_that_is_mended_with_a_reset_loses_what_was_held() -> None:
    async with linked() as (link, echo):
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        link.hold()
        writer.write(b"lost")
        await link.mend(reset=True)
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        assert echo.got == b"hello"


async def test_a_closed_link_refuses_connections_until_it_is_open_again() -> None:
    async with linked() as (link, _):
        await link.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*link.address)
        await link.open()
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
