"""What grows, never ends or comes by the thousand: it is bounded, logged once, and disturbs no other."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator

import pytest
from OpenSSL import SSL

from nsquark.wire.compression import IDENTIFIER
from tests.daemon import PATIENCE, Client, Nsqd, identify, pub, until
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.security.upgraded import auth, connect, negotiate

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def served_meanwhile(nsqd: Nsqd, publishes: int = 20) -> None:
    """Others publish and are answered."""
    async with await nsqd.connect() as client, asyncio.timeout(PATIENCE):
        for _ in range(publishes):
            await client.pub("meanwhile", b"x")


async def stays_small(nsqd: Nsqd, attack: Awaitable[object], within: int) -> None:
    before = nsqd.memory()
    await attack
    await served_meanwhile(nsqd)
    assert nsqd.memory() < before + within


# ---- bombs


async def deflated(nsqd: Nsqd, data: bytes) -> Client:
    """A connection that has asked for deflate, and sends this, already compressed."""
    client = await nsqd.connect()
    await negotiate(client, deflate=True)
    client.send(data)
    return client


def deflate(pieces: Iterator[bytes]) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(map(deflater.compress, pieces)) + deflater.flush(zlib.Z_SYNC_FLUSH)


async def test_a_stream_of_nothing_that_grows_a_thousandfold(nsqd: Nsqd) -> None:
    """32 MB of NOP in 32 KB: it takes its time, in turns with all other clients."""
    bomb = deflate(b"NOP\n" * 250_000 for _ in range(32))
    assert len(bomb) < 100_000

    async def attack() -> None:
        client = await deflated(nsqd, bomb)
        await served_meanwhile(nsqd)
        client.abort()

    await stays_small(nsqd, attack(), within=16 * MEGABYTE)


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (pub("events", b"x"), b"E_INVALID invalid command "),
        (b"PUB events\n\x7f\xff\xff\xff", b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"),
        (b"PUB", None),
    ],
)
async def test_a_hundred_megabytes_of_one_byte(nsqd: Nsqd, begin: bytes, error: bytes | None) -> None:
    """The limits of commands hold for what comes out, however little went in."""
    bomb = deflate(begin if n == 0 else b"\n" * MEGABYTE if error else b"A" * MEGABYTE for n in range(100))

    async def attack() -> None:
        client = await deflated(nsqd, bomb)
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
        client.close()

    await stays_small(nsqd, attack(), within=16 * MEGABYTE)
    if error is not None:
        nsqd.wait_for_line(f"ERROR: .*{error.decode().strip()}")


async def test_chunks_without_content(nsqd: Nsqd) -> None:
    """Snappy can say nothing in eight bytes, and sixteen megabytes of it in four."""
    nothing = b"\x01\x04\x00\x00" + struct.pack("<I", 0xA282EAD8)
    skipped = b"\xfe" + (MEGABYTE).to_bytes(3, "little") + bytes(MEGABYTE)

    async def attack() -> None:
        async with await nsqd.connect() as client:
            await negotiate(client, snappy=True)
            client.send(IDENTIFIER + nothing * 200_000 + skipped * 4)
            await served_meanwhile(nsqd)
            client.abort()

    await stays_small(nsqd, attack(), within=16 * MEGABYTE)


@pytest.mark.parametrize(
    "said",
    [
        b"\x00" * 100,
        IDENTIFIER + b"\x01\xff\xff\xff",
        IDENTIFIER + b"\x00\x08\x00\x00" + bytes(4) + b"\xff\xff\xff\xff",
        IDENTIFIER + b"\x01\x08\x00\x00" + bytes(8),
        IDENTIFIER + b"\x02\x00\x00\x00",
    ],
)
async def test_what_is_no_snappy_ends_the_connection_and_is_logged_once(nsqd: Nsqd, said: bytes) -> None:
    for _ in range(20):
        async with await nsqd.connect() as client:
            await negotiate(client, snappy=True)
            client.send(said)
            await client.reader.readexactly(len(IDENTIFIER) + 18)  # our own OK
            assert await client.reader.read() == b""
    await until(lambda: [line for line in nsqd.lines if "cannot be read" in line])
    assert len([line for line in nsqd.lines if "cannot be read" in line]) == 1


async def test_what_is_no_deflate_ends_the_connection(nsqd: Nsqd) -> None:
    async with await nsqd.connect() as client:
        await negotiate(client, deflate=True)
        client.send(deflate(iter([b"PUB events\n\x00\x00\x00\x05ab"])) + b"\xff" * 100)
        inflater = zlib.decompressobj(-15)
        assert inflater.decompress(await client.reader.read()).endswith(b"OK")  # and no more
    _, stats = await nsqd.http("GET", "/stats")
    assert b"Topics: None" in stats


# ---- handshakes


async def half_open(nsqd: Nsqd, hello: bytes = b"\x16\x03\x01\x02\x00\x01") -> Client:
    client = await nsqd.connect()
    await negotiate(client, tls_v1=True)
    client.send(hello)
    return client


async def test_thousands_of_handshakes_that_do_not_go_on(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    """The oldest make room, and no client that does go on has to wait."""
    nsqd = start(*tls_flags)
    before = nsqd.memory()
    clients: list[Client] = []
    for _ in range(30):
        clients += await asyncio.gather(*(half_open(nsqd) for _ in range(50)))
    async with await connect(nsqd, authority.client_context()) as client:
        await client.pub("events", b"x")
    await served_meanwhile(nsqd)
    assert nsqd.memory() < before + 200 * MEGABYTE
    nsqd.wait_for_line("TLS: more than 1024 handshakes at once: ending the oldest")
    assert len([line for line in nsqd.lines if "handshakes at once: ending" in line]) == 1
    assert b"tls: too many handshakes at once" in await clients[0].error()
    for each in clients:
        each.abort()


async def test_a_handshake_that_never_ends_is_ended(start: Callable[..., Nsqd], tls_flags: list[str]) -> None:
    """Byte by byte, at both doors; and one that says nothing at all."""
    nsqd = start(*tls_flags)
    port = int(nsqd.wait_for_line("HTTPS: listening on").rpartition(":")[2])
    silent = await half_open(nsqd, b"")
    dripping = await half_open(nsqd)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def drip() -> None:
        while True:
            for each in (dripping.writer, writer):
                each.write(b"\x00")
            await asyncio.sleep(0.5)

    task = asyncio.create_task(drip())
    try:
        async with asyncio.timeout(PATIENCE):
            for client in (silent, dripping):
                assert await client.error() == b"E_IDENTIFY_FAILED IDENTIFY failed i/o timeout"
            with contextlib.suppress(ConnectionError):
                await reader.read()
    finally:
        task.cancel()
        writer.close()
        silent.abort()
        dripping.abort()


async def test_a_handshake_without_end_in_size(start: Callable[..., Nsqd], tls_flags: list[str]) -> None:
    """Records of a ClientHello that is always one record short."""
    nsqd = start(*tls_flags)
    record = b"\x16\x03\x01\x3f\xff" + b"\x01\xff\xff\xff" + bytes(0x3FFF - 4)
    async with await half_open(nsqd, record * 20) as client:
        with contextlib.suppress(ConnectionError):
            said = await client.reader.read()
            assert b"E_IDENTIFY_FAILED IDENTIFY failed tls: " in said
    nsqd.wait_for_line("E_IDENTIFY_FAILED IDENTIFY failed tls: ")


async def test_a_certificate_that_is_too_large_is_refused(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags, "--tls-client-auth-policy=require")
    large = authority.client_context(authority.sign("large", padding=30_000))
    async with await connect(nsqd, large) as client:
        await client.pub("events", b"x")
    huge = authority.client_context(authority.sign("huge", padding=200_000))
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        await connect(nsqd, huge)
    nsqd.wait_for_line("E_IDENTIFY_FAILED IDENTIFY failed tls: ")


async def test_there_is_no_renegotiation(
    start: Callable[..., Nsqd], tls_flags: list[str], authority: Authority
) -> None:
    nsqd = start(*tls_flags)

    def renegotiate() -> list[str]:
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
        with socket.create_connection(("127.0.0.1", nsqd.tcp_port), PATIENCE) as plain:
            plain.sendall(b"  V2" + identify(feature_negotiation=True, tls_v1=True))
            size = struct.unpack(">i", plain.recv(4, socket.MSG_WAITALL))[0]
            plain.recv(size, socket.MSG_WAITALL)
            plain.setblocking(True)
            connection = SSL.Connection(context, plain)
            connection.set_connect_state()
            connection.do_handshake()
            assert connection.recv(10).endswith(b"OK")
            assert connection.renegotiate()
            errors = []
            try:
                connection.do_handshake()
                connection.recv(10)
            except SSL.Error as error:
                errors.append(str(error))
            return errors

    errors = await asyncio.to_thread(renegotiate)
    assert "no renegotiation" in errors[0]
    await served_meanwhile(nsqd)


# ---- asking auth servers


async def test_hundreds_that_wait_for_a_slow_auth_server(
    start: Callable[..., Nsqd], auth_server: AuthServer
) -> None:
    auth_server.silent = True
    auth_server.secrets["x"] = [entry()]
    nsqd = start(f"--auth-http-address={auth_server.address}", "--http-client-request-timeout=10s")
    clients = [await nsqd.connect() for _ in range(300)]
    before = nsqd.memory()
    for client in clients:
        client.send(auth("x") + pub("events", bytes(100_000)) * 20)
    await until(lambda: len(auth_server.asked) == 64)  # at once, and no more
    _, answer = await nsqd.http("POST", "/pub?topic=others", b"x")
    assert answer == b"OK"
    assert nsqd.memory() < before + 300 * MEGABYTE  # a read buffer each, not all that they send
    for client in clients:
        client.abort()
