"""nsqlookupds that a test writes the lines for: what they hear is kept, what they say may be anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from tests.daemon import PATIENCE, sized, until
from tests.nsqd.api import Api

OK = sized(b"OK")


class Call:
    """One connection of an nsqd."""

    def __init__(self, lookupd: ScriptedLookupd, writer: asyncio.StreamWriter) -> None:
        self.lookupd = lookupd
        self.writer = writer
        self.document: dict[str, object] = {}
        self.lines: list[str] = []
        self.ended = asyncio.Event()

    def hang_up(self) -> None:
        self.writer.transport.abort()


class ScriptedLookupd:
    """Answers IDENTIFY with its address, everything else with OK, and GET with `channels`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.requests: list[str] = []
        self.channels: list[object] = []
        self.answer_identify: bytes | None = None  # in place of what is right
        self.answer_line: Callable[[str], bytes] = lambda line: OK
        self.answer_get: bytes | None = None
        self.reads = True
        self.may_answer_get = asyncio.Event()
        self.may_answer_get.set()
        self.port = self.http_port = 0
        self._news = asyncio.Condition()
        self._tcp: asyncio.Server | None = None
        self._http: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """May be called again after `close`, and is then on the same ports."""
        self._tcp = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20)
        self._http = await asyncio.start_server(self._serve_http, "127.0.0.1", self.http_port)
        self.port = self._tcp.sockets[0].getsockname()[1]
        self.http_port = self._http.sockets[0].getsockname()[1]

    async def close(self) -> None:
        for server in (self._tcp, self._http):
            if server is not None:
                server.close()
        for call in self.calls:
            call.hang_up()
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that follows from what is heard."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(condition)

    async def called(self, number: int = 1) -> Call:
        """The latest call, once there were so many and it has identified itself."""
        await self.until(lambda: len(self.calls) >= number and self.calls[-1].document)
        return self.calls[-1]

    def _hold(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hold()
        call = Call(self, writer)
        self.calls.append(call)
        await self._tell()
        if not self.reads:
            await asyncio.Event().wait()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            assert await reader.readexactly(4) == b"  V1"
            while line := (await reader.readline()).decode().removesuffix("\n"):
                if line == "IDENTIFY":
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    call.document = json.loads(await reader.readexactly(size))
                    writer.write(
                        self.answer_identify if self.answer_identify is not None else self._identity()
                    )
                else:
                    call.lines.append(line)
                    writer.write(self.answer_line(line))
                await self._tell()
        call.ended.set()
        writer.close()
        await self._tell()

    def _identity(self) -> bytes:
        document = {
            "broadcast_address": "127.0.0.1",
            "hostname": "lookup1",
            "http_port": self.http_port,
            "tcp_port": self.port,
            "version": "1.3.0",
        }
        return sized(json.dumps(document, separators=(",", ":")).encode())

    async def _serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hold()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.split(" ")[1])
            await self._tell()
            await self.may_answer_get.wait()
            if self.answer_get is None:
                body = json.dumps({"channels": self.channels}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            else:
                writer.write(self.answer_get)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def lookupds(number: int) -> AsyncIterator[list[ScriptedLookupd]]:
    found = [ScriptedLookupd() for _ in range(number)]
    for lookupd in found:
        await lookupd.listen()
    try:
        yield found
    finally:
        for lookupd in found:
            await lookupd.close()


async def identified(api: Api, number: int = 1) -> None:
    """Return when so many lookupds have told their names."""

    def known() -> int:
        connections = [peer.connection for peer in api.broker.lookup._peers.values()]
        return sum(1 for connection in connections if connection is not None and connection.info is not None)

    await until(lambda: known() == number)


async def set_lookupds(api: Api, *found: ScriptedLookupd) -> None:
    addresses = json.dumps([lookupd.address for lookupd in found]).encode()
    answer = await api.put("/config/nsqlookupd_tcp_addresses", addresses)
    assert (answer.status, json.loads(answer.body)) == (200, json.loads(addresses))
