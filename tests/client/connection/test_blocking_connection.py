"""The connection for threads without an event loop, against an nsqd that is scripted, and against ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing

import pytest

from nsquark.client.connection.blocking_connection import AuthSecretMissing, BlockingConnection, TlsNotOffered
from nsquark.errors import BadTopic, ConnectionLost, PubFailed, UsageError
from nsquark.wire.identify import IdentifyResponse
from tests.client.scripted import IDENTIFIED, RESPONSE, Peer, ScriptedNsqd, client_context, frame, grant
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
