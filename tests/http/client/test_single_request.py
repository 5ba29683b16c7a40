"""The HTTP client: against our own server, and against answers that are cut, endless or wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nsquark.errors import ConnectFailed, ConnectionLost, UsageError
from nsquark.http.client.protocol import BadStatus
from nsquark.http.client.single_request import request


@asynccontextmanager
async def answering(
    answer: bytes, close: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes to every client: its URL, and the heads of what it was asked."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        if close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}", got
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", b"hi"),
        (b"HTTP/1.0 200 OK\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_an_answer_is_read(answer: bytes, body: bytes) -> None:
    async with answering(answer + b"") as (url, got):
        result = await request("GET", f"{url}/a/b?c=d", headers={"Accept": "x"})
        assert result.body == body
        assert result.status in (200, 204)
        host = url.removeprefix("http://")
        assert got[0].decode().split("\r\n")[:4] == [
            "GET /a/b?c=d HTTP/1.1",
            f"Host: {host}",
            "Connection: close",
            "Accept: x",
        ]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
        b"this is not HTTP\r\n\r\n",
    ],
)
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(ConnectionLost):
            await request("GET", url)


async def test_an_answer_has_a_limit() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000) as (url, _):
        with pytest.raises(ConnectionLost, match="more than 1000 bytes"):
            await request("GET", url, max_body=1000)


async def test_a_head_has_a_limit() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n" + b"X-Noise: 1\r\n" * 20_000) as (url, _):
        with pytest.raises(ConnectionLost, match="head of more than"):
            await request("GET", url)


async def test_an_answer_has_its_time() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n", close=False) as (url, _):
        with pytest.raises(ConnectFailed, match=r"within 0\.05 s"):
            await request("GET", url, timeout=0.05)


async def test_nobody_there() -> None:
    async with answering(b"") as (url, _):
        pass
    with pytest.raises(ConnectFailed):
        await request("GET", url)


@pytest.mark.parametrize("url", ["ftp://a/", "a:1", "http://", "http:///x"])
async def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        await request("GET", url)


async def test_a_header_cannot_bring_another() -> None:
    async with answering(b"") as (url, _):
        with pytest.raises(UsageError, match="line break"):
            await request("GET", url, headers={"Authorization": "x\r\nHost: y"})


def test_a_bad_status_says_what_the_server_said() -> None:
    error = BadStatus("http://a/x", 404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert (error.status, error.message) == (404, "TOPIC_NOT_FOUND")
    assert str(BadStatus("http://a/x", 500, b"oops\n")) == "http://a/x: 500 oops"
