"""The GET of the daemons, against servers that do it right and servers that do not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from nsquark.errors import ConnectionLost
from nsquark.http.fetch import fetch

LOCALHOST = Path(__file__).with_name("localhost.pem")  # for 127.0.0.1, signed by itself


@asynccontextmanager
async def answering(
    answer: bytes, hold: bool = False, tls: bool = False
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that says this to whoever asks and closes, or waits (`hold`): its port and what it hears."""
    heads: list[bytes] = []
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            if hold:
                await reader.read()
        writer.close()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(LOCALHOST)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], heads
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def get(port: int, timeout: float = 20.0, tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    return await fetch(
        "127.0.0.1", port, "/path?a=b", connect_timeout=20.0, timeout=timeout, max_body=1000, tls=tls
    )


@pytest.mark.parametrize("hold", [False, True], ids=["closes", "holds"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", (200, b"body")),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", (404, b"")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
            (200, b"body"),
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000, (200, b"x" * 1000)),
    ],
)
async def test_an_answer(answer: bytes, expected: tuple[int, bytes], hold: bool) -> None:
    async with answering(answer, hold) as (port, heads):
        assert await get(port) == expected
    assert heads[0].split(b"\r\n")[:3] == [
        b"GET /path?a=b HTTP/1.1",
        b"Host: 127.0.0.1:%d" % port,
        b"Accept: application/vnd.nsq; version=1.0",
    ]


async def test_an_answer_may_end_with_the_connection() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\nbody") as (port, _):
        assert await get(port) == (200, b"body")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbody",
        b"SSH-2.0-OpenSSH\r\n",
        b"\0" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
async def test_what_is_no_answer(answer: bytes) -> None:
    async with answering(answer) as (port, _):
        with pytest.raises(ConnectionLost):
            await get(port)


async def test_an_answer_that_does_not_come() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n", hold=True) as (port, _):
        with pytest.raises(TimeoutError):
            await get(port, timeout=0.05)


async def test_nobody_there() -> None:
    async with answering(b"") as (port, _):
        pass
    with pytest.raises(ConnectionRefusedError):
        await get(port)


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(LOCALHOST))


@pytest.mark.parametrize(("context", "trusted"), [(trusting, True), (ssl.create_default_context, False)])
async def test_tls(context: Callable[[], ssl.SSLContext], trusted: bool) -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", tls=True) as (port, _):
        if trusted:
            assert await get(port, tls=context()) == (200, b"body")
        else:
            with pytest.raises(ssl.SSLError):
                await get(port, tls=context())
