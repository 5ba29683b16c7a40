"""A GET, for what the daemons ask each other: whatever the other side does, it ends, and costs little."""

from __future__ import annotations

import asyncio
from ssl import SSLContext

from httptools import HttpParserError, HttpResponseParser

from nsquark.errors import ConnectionLost

MAX_HEAD = 64 * 1024
ACCEPT = "application/vnd.nsq; version=1.0"


async def fetch(
    host: str,
    port: int,
    target: str,
    *,
    connect_timeout: float,
    timeout: float,
    max_body: int,
    tls: SSLContext | None = None,
) -> tuple[int, bytes]:
    """The status and the body of `GET target`.

    `timeout` is for all of it, `connect_timeout` for the first part. Raises OSError, of which TimeoutError
    and ConnectionLost (what came is no HTTP, or too much) are kinds.
    """
    async with asyncio.timeout(timeout):
        async with asyncio.timeout(connect_timeout):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            name = f"[{host}]" if ":" in host else host
            head = f"GET {target} HTTP/1.1\r\nHost: {name}:{port}\r\n"
            writer.write(f"{head}Accept: {ACCEPT}\r\nConnection: close\r\n\r\n".encode())
            return await _read(reader, max_body)
        finally:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, max_body: int) -> tuple[int, bytes]:
    answer = _Answer()
    parser = HttpResponseParser(answer)
    size = 0
    while not answer.complete:
        data = await reader.read(MAX_HEAD)
        size += len(data)
        if size > MAX_HEAD + max_body:
            raise ConnectionLost(f"more than {max_body} bytes")
        if not data:
            if answer.head and not answer.sized:
                break  # its end is the connection's
            raise ConnectionLost("the answer was cut short")
        try:
            parser.feed_data(data)
        except HttpParserError as error:
            if not answer.complete:
                raise ConnectionLost(f"no HTTP: {error}") from None
    return parser.get_status_code(), b"".join(answer.body)


class _Answer:
    """What the parser tells."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.head = self.sized = self.complete = False

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self.sized = True

    def on_headers_complete(self) -> None:
        self.head = True

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True
