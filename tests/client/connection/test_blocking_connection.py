"""The connection for threads without an event loop, against an nsqd that is scripted, one that plays a
transcript, and ours."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from nsquark.client.connection.blocking_connection import (
    AuthSecretMissing,
    BlockingConnection,
    ConnectionClosed,
    TlsNotOffered,
)
from nsquark.errors import BadTopic, ConnectionLost, Invalid, PubFailed, UsageError
from nsquark.wire.frames import HEARTBEAT, pack_error, pack_response
from nsquark.wire.identify import IdentifyResponse
from tests.client.scripted import IDENTIFIED, OK, RESPONSE, Peer, ScriptedNsqd, client_context, frame, grant
from tests.daemon import Nsqd

PUB = b"PUB t\n\0\0\0\1x"


async def publishing(
    nsqd: ScriptedNsqd, asked: dict[str, object], secret: str | None = None
) -> IdentifyResponse:
    """Two publishes by a thread; the answer to its IDENTIFY."""

    def work() -> IdentifyResponse:
        with closing(BlockingConnection(nsqd.address, 20)) as connection:
            context = client_context() if asked.get("tls_v1") else None
            response = connection.shake_hands(asked, context, secret)
            connection.send(PUB + PUB)
            assert [connection.read_response(), connection.read_response()] == [b"OK", b"OK"]
            return response

    return await asyncio.to_thread(work)


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
async def test_layers(tls: bool, compression: str | None) -> None:
    async with ScriptedNsqd() as nsqd:
        grant(nsqd, tls=tls, compression=compression)
        await publishing(nsqd, {"tls_v1": tls, **({compression: True} if compression else {})})
        assert nsqd.peers[0].bodies[-2:] == [b"x", b"x"]


async def test_auth() -> None:
    async with ScriptedNsqd({"auth_required": True}) as nsqd:
        nsqd.handlers["AUTH"] = lambda peer: peer.respond(b'{"identity": "me"}')
        await publishing(nsqd, {}, "secret")
        assert nsqd.peers[0].bodies[1] == b"secret"
        with pytest.raises(AuthSecretMissing):
            await publishing(nsqd, {})


async def test_tls_that_is_not_offered_is_an_error() -> None:
    async with ScriptedNsqd() as nsqd:
        with pytest.raises(TlsNotOffered):
            await publishing(nsqd, {"tls_v1": True})


async def test_heartbeats_are_answered() -> None:
    async with ScriptedNsqd() as nsqd:

        def answer(peer: Peer) -> None:
            peer.send(frame(RESPONSE, b"_heartbeat_"))
            peer.respond()

        nsqd.handlers["PUB"] = answer
        await publishing(nsqd, {})
        await nsqd.peers[0].until("NOP")


async def test_an_error_is_raised() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["PUB"] = lambda peer: peer.fail(b"E_PUB_FAILED full")
        with pytest.raises(PubFailed):
            await publishing(nsqd, {})


@pytest.mark.parametrize("answer", [lambda peer: peer.drop(), lambda peer: peer.push(1)])
async def test_a_connection_that_is_of_no_use_any_more(answer: Callable[[Peer], None]) -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["PUB"] = answer
        with pytest.raises((ConnectionLost, ConnectionError)):
            await publishing(nsqd, {})


async def test_identify_alone_is_answered_whatever_else_nsqd_wants() -> None:
    async with ScriptedNsqd() as nsqd:
        answer = json.dumps({**IDENTIFIED, "auth_required": True, "http_port": 4151}).encode()
        nsqd.handlers["IDENTIFY"] = lambda peer: peer.respond(answer)

        def work() -> int:
            with closing(BlockingConnection(nsqd.address, 20)) as connection:
                return connection.identify({"feature_negotiation": True}).http_port

        assert await asyncio.to_thread(work) == 4151


def test_a_real_nsqd(nsqd: Nsqd) -> None:
    with closing(BlockingConnection(nsqd.tcp_address, 20)) as connection:
        response = connection.shake_hands({"feature_negotiation": True, "snappy": True}, None, None)
        assert response.snappy
        assert response.http_port == int(nsqd.http_address.rpartition(":")[2])
        connection.send(PUB * 1000)
        assert {connection.read_response() for _ in range(1000)} == {b"OK"}
        connection.send(b"PUB a$b\n\0\0\0\1x")
        with pytest.raises(BadTopic):
            connection.read_response()


@pytest.mark.parametrize("address", ["", "a", "a:", ":1", "a:b:1"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        BlockingConnection(address, 1)


# ---- transcripts, whole and byte by byte


@contextmanager
def playing(transcript: bytes, byte_by_byte: bool) -> Iterator[tuple[BlockingConnection, list[bytes]]]:
    """A connection whose nsqd sends the transcript and closes; and all that nsqd has received in the end."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play() -> None:
            peer, _ = server.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for part in [bytes([each]) for each in transcript] if byte_by_byte else [transcript]:
                    peer.sendall(part)
                peer.shutdown(socket.SHUT_WR)
                while data := peer.recv(1 << 16):
                    received.append(data)

        thread = threading.Thread(target=play)
        thread.start()
        with closing(BlockingConnection(f"127.0.0.1:{server.getsockname()[1]}", 20.0)) as connection:
            yield connection, received
        thread.join()


BOTH = pytest.mark.parametrize("byte_by_byte", [False, True])


@BOTH
def test_responses_come_one_by_one_and_heartbeats_are_answered(byte_by_byte: bool) -> None:
    transcript = OK + OK + HEARTBEAT + pack_response(b"CLOSE_WAIT") + OK
    with playing(transcript, byte_by_byte) as (connection, received):
        assert [connection.read_response() for _ in range(4)] == [b"OK", b"OK", b"CLOSE_WAIT", b"OK"]
        with pytest.raises(ConnectionClosed, match=f"{connection.address} has closed the connection"):
            connection.read_response()
    assert b"".join(received) == b"NOP\n"


@BOTH
def test_the_handshake_sends_the_magic_identify_and_auth(byte_by_byte: bool) -> None:
    transcript = pack_response(b'{"http_port": 4151, "auth_required": true}') + pack_response(b"{}")
    with playing(transcript, byte_by_byte) as (connection, received):
        assert connection.shake_hands({"tls_v1": False}, None, "secret").http_port == 4151
    assert b"".join(received) == b'  V2IDENTIFY\n\0\0\0\x10{"tls_v1":false}AUTH\n\0\0\0\6secret'


@BOTH
def test_an_error_frame_is_raised_with_its_code_and_text(byte_by_byte: bool) -> None:
    with playing(pack_error(b"E_INVALID no"), byte_by_byte) as (connection, _):
        with pytest.raises(Invalid, match="E_INVALID no"):
            connection.read_response()


@pytest.mark.parametrize("transcript", [b"HTTP/1.1 400 Bad Request", b"\x7f\0\0\0\0\0\0\0"])
def test_another_protocol_is_no_closed_connection(transcript: bytes) -> None:
    with playing(transcript, False) as (connection, _), pytest.raises(ConnectionLost) as caught:
        connection.read_response()
    assert not isinstance(caught.value, ConnectionClosed)
