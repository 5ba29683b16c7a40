"""Clients that hang up at any moment leave nothing behind, without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsquark.http.server.connection import HttpConnection
from nsquark.http.server.message import Request
from nsquark.http.server.reader import RequestReader
from nsquark.net.layered_transport import Layers, TlsFirst
from nsquark.nsqd.core.answers import AnswerQueue
from nsquark.nsqd.core.consumer import Consumer
from nsquark.nsqd.core.publish import PublishStream
from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.auth.client_auth import ClientAuth
from nsquark.nsqd.protocol.certificates import Certificates
from nsquark.nsqd.protocol.commands import Commands
from nsquark.nsqd.protocol.connection import Connection
from nsquark.nsqd.protocol.heartbeat import Heartbeat
from nsquark.nsqd.protocol.publishing import Publishing
from nsquark.nsqd.protocol.session import Session
from nsquark.nsqd.protocol.socket_reading import SocketReading
from nsquark.nsqd.server import Server
from nsquark.wire import CommandParser
from nsquark.wire.compression import Deflate, Snappy
from nsquark.wire.tls import TlsStream
from tests.daemon import Nsqd, identify, mpub, pub, sized, until
from tests.security.certificates import Authority

PATIENCE = 10.0
MEGABYTE = 1 << 20
HELD = (
    Connection, Session, Commands, Publishing, Heartbeat, SocketReading, CommandParser, AnswerQueue,
    PublishStream, Consumer, ClientAuth, Layers, TlsFirst, TlsStream, Snappy, Deflate, HttpConnection,
    RequestReader, Request,
)  # fmt: skip
HALF_MPUB = mpub("t", [bytes(MEGABYTE)] * 4)[: 3 * MEGABYTE]
HALF_PUB = pub("t", bytes(MEGABYTE))[: 3 * MEGABYTE // 4]


@contextmanager
def uncollected() -> Iterator[None]:
    """Only the counting of references frees anything. Nor is anything kept by what was logged.

    What is there at the beginning is frozen, so that looking through all objects looks at the new ones only.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        gc.unfreeze()


def held() -> Counter[str]:
    """What there is of all that a connection consists of, of the objects that are not frozen."""
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in HELD)


class Peer:
    """A client that says what it is told to, and then is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._tls: ssl.SSLObject | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock)

    async def send(self, data: bytes) -> None:
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        async with asyncio.timeout(PATIENCE):
            await self._loop.sock_sendall(self._sock, data)

    async def hear(self, size: int = 65536) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._loop.sock_recv(self._sock, size)

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._loop.sock_sendall(self._sock, self._outgoing.read())
                self._incoming.write(await self.hear())
        await self._loop.sock_sendall(self._sock, self._outgoing.read())
        self._tls = tls

    def hang_up(self, reset: bool) -> None:
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()


class Node:
    """An nsqd in this process."""

    def __init__(self, server: Server, authority: Authority) -> None:
        self.broker = server.broker
        self._tls = authority.client_context()

    async def tcp(self, *said: bytes) -> Peer:
        peer = await Peer.connect(self.broker.tcp_port)
        await peer.send(b"".join([b"  V2", *said]))
        return peer

    async def raw(self, said: bytes) -> Peer:
        peer = await Peer.connect(self.broker.tcp_port)
        await peer.send(said)
        return peer

    async def http(self, *said: bytes) -> Peer:
        peer = await Peer.connect(self.broker.http_port)
        await peer.send(b"".join(said))
        return peer

    async def https(self, *said: bytes) -> Peer:
        peer = await Peer.connect(self.broker.https_port)
        await peer.shake_hands(self._tls)
        await peer.send(b"".join(said))
        return peer

    async def upgraded(self, tls: bool, compression: str, *said: bytes) -> Peer:
        asked: dict[str, object] = {"feature_negotiation": True, "tls_v1": tls}
        if compression:
            asked[compression] = True
        peer = await self.tcp(identify(**asked))
        await peer.hear()
        if tls:
            await peer.shake_hands(self._tls)
        data = b"".join(said)
        if compression:
            stream = Snappy() if compression == "snappy" else Deflate()
            data = stream.compress(data)
        await peer.send(data)
        return peer


Scenario = Callable[[Node], Awaitable[Peer]]


def post(path: str, size: int, body: bytes = b"") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def subscribed(node: Node) -> Peer:
    peer = await node.tcp(pub("t", b"x") * 100, b"SUB t c\nRDY 10\n")
    await peer.hear()
    return peer


async def errors(node: Node) -> Peer:
    peer = await node.tcp(b"SUB t c\n", b"FIN 0123456789abcdef\nNONSENSE\n")
    await peer.hear()
    return peer


async def half_a_hello(node: Node) -> Peer:
    peer = await node.tcp(identify(feature_negotiation=True, tls_v1=True))
    await peer.hear()
    await peer.send(b"\x16\x03\x01\x02\x00\x01" + bytes(100))
    return peer


SCENARIOS: dict[str, Scenario] = {
    "nothing": lambda node: Peer.connect(node.broker.tcp_port),
    "half a magic": lambda node: node.raw(b"  "),
    "half an IDENTIFY": lambda node: node.tcp(b"IDENTIFY\n" + struct.pack(">i", 1 << 20) + bytes(500_000)),
    "half a line": lambda node: node.tcp(b"PUB " + b"x" * 10_000),
    "half a PUB": lambda node: node.tcp(b"PUB t\n" + struct.pack(">i", 1 << 20) + bytes(500_000)),
    "half a DPUB": lambda node: node.tcp(b"DPUB t 5\n" + struct.pack(">i", 1 << 20) + bytes(500_000)),
    "half an MPUB": lambda node: node.tcp(HALF_MPUB),
    "large PUBs, and half of one": lambda node: node.tcp(pub("t", bytes(MEGABYTE)) * 2, HALF_PUB),
    "publishes, and half an MPUB": lambda node: node.tcp(pub("t", b"x") * 1000, HALF_MPUB),
    "publishes, and half of one": lambda node: node.tcp((pub("t", b"x" * 100) * 1000)[:-50]),
    "a consumer": subscribed,
    "errors": errors,
    "half a hello": half_a_hello,
    "TLS, half an MPUB": lambda node: node.upgraded(True, "", HALF_MPUB),
    "TLS and deflate, half an MPUB": lambda node: node.upgraded(True, "deflate", HALF_MPUB),
    "snappy, half an MPUB": lambda node: node.upgraded(False, "snappy", HALF_MPUB),
    "deflate, half an MPUB": lambda node: node.upgraded(False, "deflate", HALF_MPUB),
    "deflate, a consumer": lambda node: node.upgraded(False, "deflate", b"SUB t c\nRDY 10\n"),
    "HTTP, nothing": lambda node: node.http(),
    "HTTP, half a head": lambda node: node.http(
        b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000
    ),
    "HTTP, half a body": lambda node: node.http(post("/mpub?topic=t", 5 << 20, bytes(4 << 20))),
    "HTTP, pipelined": lambda node: node.http(post("/pub?topic=t", 1, b"x") * 500, get("/stats") * 50),
    "HTTP, a request that waits": lambda node: node.http(
        post("/topic/create?topic=t", 0), get("/log/range?topic=t&wait_ms=60000")
    ),
    "HTTP, a lease": lambda node: node.http(
        post("/channel/create?topic=t&channel=c", 0),
        post("/channel/lease?topic=t&channel=c&owner=o&hold_ms=60000", 0),
    ),
    "HTTP, nonsense": lambda node: node.http(b"NONSENSE\r\n\r\n"),
    "HTTPS, no handshake": lambda node: Peer.connect(node.broker.https_port),
    "HTTPS, half a body": lambda node: node.https(post("/mpub?topic=t", 5 << 20, bytes(4 << 20))),
    "HTTPS, a request that waits": lambda node: node.https(
        post("/topic/create?topic=t", 0), get("/log/range?topic=t&wait_ms=60000")
    ),
}


AUTH_SCENARIOS: dict[str, Scenario] = {
    "a query": lambda node: node.tcp(b"AUTH\n" + sized(b"secret"), HALF_MPUB[:100_000]),
    "a query, with TLS": lambda node: node.upgraded(
        True, "", b"AUTH\n" + sized(b"secret"), HALF_MPUB[:100_000]
    ),
    "half a secret": lambda node: node.tcp(b"AUTH\n" + struct.pack(">i", 1 << 20) + bytes(500_000)),
}
ASKS_NOBODY = {"auth_http_address": ["127.0.0.1:1"], "http_client_connect_timeout": 60.0}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop").run(main)
    else:
        asyncio.run(main)


async def serve(path: Path, authority: Authority, **changes: object) -> Server:
    options = Options(
        data_path=str(path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        https_address="127.0.0.1:0",
        tls_cert=str(authority.folder / "server.pem"),
        tls_key=str(authority.folder / "server.key"),
    )
    for name, value in changes.items():
        setattr(options, name, value)
    certificates = Certificates(options)
    certificates.load_server(options)
    server = Server(options, certificates)
    await server.start()
    return server


async def nothing_is_held(before: Counter[str], scenario: str = "") -> None:
    deadline = time.monotonic() + 2 * PATIENCE  # the pure kernel takes its time
    left = held() - before
    while left and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        left = held() - before
    assert not left, (scenario, left)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    authority.sign("server")
    return authority


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("auth", [False, True])
def test_who_hangs_up_leaves_nothing(loop: str, auth: bool, authority: Authority, tmp_path: Path) -> None:
    async def main() -> None:
        # With auth servers that never answer, there is one more moment in which to hang up.
        server = await serve(tmp_path, authority, **(ASKS_NOBODY if auth else {}))
        node = Node(server, authority)
        before = held()
        for scenario, begin in (AUTH_SCENARIOS if auth else SCENARIOS).items():
            for reset in (False, True):
                peer = await begin(node)
                await asyncio.sleep(0.02)
                assert held() - before, f"{scenario}: it was never there"
                peer.hang_up(reset)
                del peer
                await nothing_is_held(before, scenario)
        await server.stop()

    with uncollected():
        run(loop, main())


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_who_hangs_up_before_the_fsync_leaves_its_receipts(
    loop: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(_fd: int) -> None:
        go_on.wait(PATIENCE)

    async def main() -> None:
        server = await serve(tmp_path, authority, sync_every=1)
        node = Node(server, authority)
        before = held()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", wait)
            peers = [
                await node.tcp(pub("t", b"x") * 10, HALF_MPUB),
                await node.http(
                    post("/pub?topic=t", 1, b"x") * 3, post("/mpub?topic=t", 5 << 20, bytes(4 << 20))
                ),
            ]
            await asyncio.sleep(0.1)
            for peer in peers:
                peer.hang_up(True)
            del peers, peer
            # The receipts are the topic's: answers to no client.
            await nothing_is_held(
                before + Counter(AnswerQueue=1, HttpConnection=1, RequestReader=1, Request=3)
            )
            go_on.set()
            await nothing_is_held(before)
        await server.stop()

    with uncollected():
        run(loop, main())


async def test_memory_does_not_grow_with_clients_that_hang_up(nsqd: Nsqd) -> None:
    async def hang_up_many() -> None:
        for number in range(100):
            peer = await Peer.connect(nsqd.tcp_port if number % 4 else nsqd.http_port)
            if number % 4:
                await peer.send(b"  V2" + (HALF_MPUB if number % 4 > 1 else pub("t", b"x") + HALF_PUB))
            else:
                await peer.send(post("/mpub?topic=t", 5 << 20, bytes(4 << 20)))
            peer.hang_up(number % 2 == 0)
        assert (await nsqd.http("GET", "/ping"))[1] == b"OK"

    await hang_up_many()
    before = nsqd.memory()
    for _ in range(3):
        await hang_up_many()
    await until(lambda: nsqd.memory() < before + 30 * MEGABYTE)
