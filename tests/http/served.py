"""A listening HttpServer, and a client that sees bytes and understands as little as possible."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nsquark.http import HttpServer


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, status, _reason = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), dict(line.split(": ", 1) for line in lines[1:] if line)

    async def answer(self, bodiless: bool = False) -> Answer:
        status, headers = await self.head()
        length = 0 if bodiless else int(headers["Content-Length"])
        return Answer(status, headers, await self.reader.readexactly(length))

    async def ask(self, data: bytes) -> Answer:
        self.send(data)
        return await self.answer()

    async def closed(self) -> bool:
        """Whether nothing more comes; waits for it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.close()


class Served:
    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.clients: list[Client] = []
        self.port = 0
        self._listeners: list[asyncio.Server] = []

    async def listen(self) -> None:
        listener = await asyncio.get_running_loop().create_server(self.server.protocol, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._listeners.append(listener)

    async def client(self) -> Client:
        client = await Client.connect(self.port)
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> Answer:
        return await (await self.client()).ask(data)

    async def listen_unix(self, path: str) -> Client:
        """Listen on a unix socket too, and connect to it."""
        loop = asyncio.get_running_loop()
        self._listeners.append(await loop.create_unix_server(self.server.protocol, path))
        client = Client(*await asyncio.open_unix_connection(path))
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            client.close()
        for listener in self._listeners:
            listener.close()
        self.server.close()
        while self.server.connections:  # noqa: ASYNC110 - a turn or two
            await asyncio.sleep(0)


def get(path: str, *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: nsqd", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method=method) + body


def chunked(path: str, *chunks: bytes) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    return get(path, "Transfer-Encoding: chunked", method="POST") + body
