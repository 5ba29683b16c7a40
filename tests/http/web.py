"""An HTTP server that answers as a test tells it, and writes down every request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@dataclass
class Got:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    connection: int  # a number for each


def answer(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Something", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


Script = Callable[[Got, asyncio.StreamWriter], Awaitable[None] | None]


class Web:
    """`async with Web() as web` listens at `web.url`. `answers` maps a path to bytes or to a function."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.got: list[Got] = []
        self.answers: dict[str, bytes | Script] = {}
        self.connections = 0
        self.most_at_once = 0
        self._at_once = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        host = "localhost" if self._tls else "127.0.0.1"
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while not writer.is_closing():
                await self._exchange(reader, writer, number)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = dict(line.lower().split(": ", 1)[:1] + line.split(": ", 1)[1:] for line in head[1:-2])
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        got = Got(method, target, headers, body, number)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            script = self.answers.get(target.partition("?")[0], OK)
            if isinstance(script, bytes):
                writer.write(script)
            else:
                result = script(got, writer)
                if result is not None:
                    await result
        finally:
            self._at_once -= 1
            self.got.append(got)
