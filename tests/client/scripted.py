"""An nsqd that does what a test tells it, and writes down every command it gets.

It is no copy of ours: it answers what it must for a client to get going, and pushes messages when told to,
whatever RDY says.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from nsquark.wire.compression import Deflate, Snappy, Stream
from tests.daemon import PATIENCE

CERTIFICATE = Path(__file__).parent / "tls" / "cert.pem"
KEY = Path(__file__).parent / "tls" / "key.pem"
RESPONSE, ERROR, MESSAGE = range(3)


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", len(data) + 4, kind) + data


def message_frame(message_id: bytes, body: bytes = b"body", attempts: int = 1, timestamp: int = 1) -> bytes:
    return frame(MESSAGE, struct.pack(">qH16s", timestamp, attempts, message_id) + body)


OK = frame(RESPONSE, b"OK")
IDENTIFIED = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


class Peer:
    """One client's connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.identify: dict[str, Any] = {}
        self.commands: list[str] = []  # all of them, without bodies
        self.bodies: list[bytes] = []
        self._news: asyncio.Queue[str] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.stream: Stream | None = None
        self._read = bytearray()

    def send(self, data: bytes) -> None:
        self.writer.write(data if self.stream is None else self.stream.compress(data))

    async def upgrade_to_tls(self, context: ssl.SSLContext) -> None:
        """Our side of a TLS handshake."""
        await self.writer.start_tls(context)

    def respond(self, data: bytes = b"OK") -> None:
        self.send(frame(RESPONSE, data))

    def fail(self, data: bytes) -> None:
        self.send(frame(ERROR, data))

    def push(self, number: int, body: bytes = b"body", attempts: int = 1) -> None:
        self.send(message_frame(b"%016x" % number, body, attempts))

    async def next(self) -> str:
        """The next command that no test has asked for yet."""
        async with asyncio.timeout(PATIENCE):
            return await self._news.get()

    async def expect(self, *commands: str) -> None:
        """The next commands are these. A FIN may be given without its id, and so may a REQ."""
        for command in commands:
            got = await self.next()
            assert got == command or got.split(" ")[0] == command, (command, got, self.commands)

    async def until(self, command: str) -> None:
        while await self.next() != command:
            pass

    def drop(self) -> None:
        self.writer.transport.abort()

    async def _more(self) -> None:
        data = await self.reader.read(65536)
        if not data:
            raise ConnectionError("the client has gone")
        for piece in [data] if self.stream is None else self.stream.decompress(data):
            self._read += piece

    async def read(self, size: int) -> bytes:
        while len(self._read) < size:
            await self._more()
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    async def read_command(self) -> tuple[list[str], bytes]:
        while b"\n" not in self._read:
            await self._more()
        line = await self.read(self._read.index(b"\n") + 1)
        words = line.decode().rstrip("\n").split(" ")
        body = b""
        if words[0] in ("IDENTIFY", "AUTH", "PUB", "MPUB", "DPUB"):
            (size,) = struct.unpack(">I", await self.read(4))
            body = await self.read(size)
        return words, body

    def note(self, words: list[str], body: bytes) -> None:
        self.commands.append(" ".join(words))
        self.bodies.append(body)
        self._news.put_nowait(" ".join(words))


class ScriptedNsqd:
    """`async with ScriptedNsqd() as nsqd`: listens; `await nsqd.peer()` is the next client."""

    def __init__(self, identified: dict[str, object] | None = None) -> None:
        self.identified = {**IDENTIFIED, **(identified or {})}
        self.address = ""
        self.peers: list[Peer] = []
        # answers in place of the usual ones: command -> what to do
        self.handlers: dict[str, Callable[[Peer], Awaitable[None] | None]] = {}
        self._new: asyncio.Queue[Peer] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ScriptedNsqd:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Listen no more, and drop everybody."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self.peers:
            peer.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def peer(self, subscribed: bool = True) -> Peer:
        """The next client, once it has said all it says before its first RDY."""
        async with asyncio.timeout(PATIENCE):
            peer = await self._new.get()
        if subscribed:
            await peer.expect("IDENTIFY", "SUB")
        return peer

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            assert await peer.read(4) == b"  V2"
            self._new.put_nowait(peer)
            while True:
                words, body = await peer.read_command()
                peer.note(words, body)
                await self._answer(peer, words[0], body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            peer.closed.set()
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, peer: Peer, command: str, body: bytes) -> None:
        if command in self.handlers:
            result = self.handlers[command](peer)
            if result is not None:
                await result
        elif command == "IDENTIFY":
            peer.identify = json.loads(body)
            peer.respond(json.dumps(self.identified).encode())
        elif command == "CLS":
            peer.respond(b"CLOSE_WAIT")
        elif command in ("SUB", "PUB", "MPUB", "DPUB"):
            peer.respond()


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


def grant(nsqd: ScriptedNsqd, *, tls: bool = False, compression: str | None = None) -> None:
    """Answer IDENTIFY with these layers, each with its OK inside, as nsqd does."""
    answer = {**IDENTIFIED, "tls_v1": tls}
    if compression is not None:
        answer[compression] = True

    async def identify(peer: Peer) -> None:
        peer.identify = json.loads(peer.bodies[-1])
        stream = {"snappy": Snappy, "deflate": Deflate, None: lambda: None}[compression]()
        plain = frame(RESPONSE, json.dumps(answer).encode())
        if tls:
            peer.send(plain)
            await peer.upgrade_to_tls(server_context())
            plain = OK
        # What is inside the next layer comes with what is outside of it, in one segment.
        peer.writer.write(plain + (stream.compress(OK) if stream is not None else b""))
        peer.stream = stream

    nsqd.handlers["IDENTIFY"] = identify
