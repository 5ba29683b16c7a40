"""An nsqlookupd in this process, nsqds that are only as good as a test wants them, and HTTP."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from nsquark.nsqlookupd.directory import Directory
from nsquark.nsqlookupd.options import Options
from nsquark.nsqlookupd.server import Server
from tests.daemon import PATIENCE, sized
from tests.http.served import Answer, get, post
from tests.http.served import Client as HttpClient

MAGIC = b"  V1"


def identify(**changes: object) -> bytes:
    document: dict[str, object] = {
        "broadcast_address": "nsqd1.example",
        "hostname": "nsqd1",
        "http_port": 4151,
        "tcp_port": 4150,
        "version": "1.3.0",
    }
    return b"IDENTIFY\n" + sized(json.dumps(document | changes).encode())


class Producer:
    """The V1 protocol from the side of an nsqd."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        host, port = writer.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"

    @classmethod
    async def connect(cls, port: int, magic: bytes = MAGIC) -> Producer:
        producer = cls(*await asyncio.open_connection("127.0.0.1", port))
        producer.send(magic)
        return producer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.answer()

    async def ok(self, *lines: str) -> None:
        """Commands, all sent before the first answer is read."""
        self.send("".join(f"{line}\n" for line in lines).encode())
        for line in lines:
            assert await self.answer() == b"OK", line

    async def closed(self) -> None:
        """Return when the lookupd has closed, having said nothing more."""
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""

    def close(self) -> None:
        self.writer.close()


class Lookupd:
    def __init__(self, server: Server) -> None:
        self.directory: Directory = server.directory
        self.tcp_port, self.http_port = server.tcp_port, server.http_port
        self.http: HttpClient
        self._producers: list[Producer] = []

    async def connect(self, magic: bytes = MAGIC) -> Producer:
        producer = await Producer.connect(self.tcp_port, magic)
        self._producers.append(producer)
        return producer

    async def producer(self, *lines: str, **changes: object) -> Producer:
        """One that has identified itself and sent these commands."""
        producer = await self.connect()
        assert b'"version":"1.3.0"' in await producer.ask(identify(**changes))
        await producer.ok(*lines)
        return producer

    async def ask(self, path: str, method: str = "GET") -> Answer:
        return await self.http.ask(
            get(path, method=method) if method == "GET" else post(path, b"", method=method)
        )

    async def get(self, path: str) -> Any:
        answer = await self.ask(path)
        assert answer.status == 200, (path, answer)
        return json.loads(answer.body)

    async def post(self, path: str) -> None:
        """One that succeeds, with nothing to tell."""
        answer = await self.ask(path, "POST")
        assert (answer.status, answer.body) == (200, b""), (path, answer)

    async def producers(self, topic: str) -> list[str]:
        """The hosts that consumers are sent to."""
        return [each["broadcast_address"] for each in (await self.get(f"/lookup?topic={topic}"))["producers"]]

    def close(self) -> None:
        self.http.close()
        for producer in self._producers:
            producer.close()


@asynccontextmanager
async def running(**changes: object) -> AsyncIterator[Lookupd]:
    """An nsqlookupd with these options on ports of its own, stopped at the end."""
    options = Options(
        tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", broadcast_address="lookup1.example"
    )
    for name, value in changes.items():
        setattr(options, name, value)
    server = Server(options)
    await server.start()
    lookupd = Lookupd(server)
    lookupd.http = await HttpClient.connect(server.http_port)
    try:
        yield lookupd
    finally:
        lookupd.close()
        await server.stop()
