"""From the dial to a connection that is ready: TLS, compression, AUTH, and everything that can be refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from nsquark.client import Config, Consumer, Producer
from nsquark.client.config import Reconnect
from nsquark.errors import AuthFailed, BadBody, ConnectFailed
from nsquark.wire.compression import Deflate
from tests.client.scripted import IDENTIFIED, RESPONSE, Peer, ScriptedNsqd, client_context, frame, grant
from tests.daemon import Nsqd, Nsqlookupd

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
async def test_layers(tls: bool, compression: str | None) -> None:
    async with ScriptedNsqd() as nsqd:
        grant(nsqd, tls=tls, compression=compression)
        config = Config(tls=client_context() if tls else False, compression=compression, max_in_flight=5)  # type: ignore[arg-type]
        async with Consumer("t", "ch", nsqd=nsqd.address, config=config) as consumer:
            peer = await nsqd.peer()
            await peer.expect("RDY 5")
            assert peer.identify["tls_v1"] is tls
            assert peer.identify["snappy"] is (compression == "snappy")
            assert peer.identify["deflate"] is (compression == "deflate")
            peer.push(1, b"small")
            peer.push(2, b"large" * 100_000)
            async with asyncio.timeout(20):
                assert [(await anext(consumer)).body[:5] for _ in range(2)] == [b"small", b"large"]
            peer.send(frame(RESPONSE, b"_heartbeat_"))
            await peer.expect("NOP")
        async with Producer(nsqd.address, config=config) as producer:
            await producer.publish("t", b"x" * 300_000)
            assert nsqd.peers[-1].bodies[-1] == b"x" * 300_000


async def refusal(nsqd: ScriptedNsqd, config: Config) -> ConnectFailed:
    with pytest.raises(ConnectFailed) as caught:
        async with Consumer("t", "ch", nsqd=nsqd.address, config=config, fail_fast=True):
            pass
    return caught.value


@pytest.mark.parametrize("tls", [True, "context"])
async def test_tls_that_is_not_granted_is_an_error_and_nothing_is_said_in_plain_text(tls: object) -> None:
    async with ScriptedNsqd() as nsqd:
        config = Config(tls=True if tls is True else client_context(), auth_secret="secret")
        assert "does not offer TLS" in str(await refusal(nsqd, config))
        async with Producer(nsqd.address, config=config) as producer:
            with pytest.raises(ConnectFailed, match="does not offer TLS"):
                await producer.publish("t", b"secret")
        assert [peer.commands for peer in nsqd.peers] == [["IDENTIFY"], ["IDENTIFY"]]


async def test_plain_text_can_be_allowed() -> None:
    async with ScriptedNsqd() as nsqd:
        config = Config(tls=client_context(), tls_required=False)
        async with Producer(nsqd.address, config=config) as producer:
            await producer.publish("t", b"x")


async def test_a_certificate_that_nobody_signed_is_refused() -> None:
    async with ScriptedNsqd() as nsqd:
        grant(nsqd, tls=True)
        error = await refusal(nsqd, Config(tls=True))
        assert "CERTIFICATE_VERIFY_FAILED" in str(error)
        assert error.permanent


async def test_compression_that_is_not_granted_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        ScriptedNsqd() as nsqd,
        Producer(nsqd.address, config=Config(compression="snappy")) as producer,
    ):
        await producer.publish("t", b"x")
        assert "does not offer snappy" in caplog.text


async def test_an_error_instead_of_the_answer_is_told() -> None:
    async with ScriptedNsqd() as nsqd:
        text = b"E_BAD_BODY IDENTIFY heartbeat interval (100) is invalid"
        nsqd.handlers["IDENTIFY"] = lambda peer: peer.fail(text)
        error = await refusal(nsqd, Config(heartbeat_interval=1.0))
        assert text.decode() in str(error)
        assert isinstance(error.__cause__, BadBody)
        assert error.permanent


@pytest.mark.parametrize("answer", [b"{oops", b'{"max_rdy_count":"many"}', b'{"tls_v1":1}'])
async def test_a_strange_answer_is_refused(answer: bytes) -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["IDENTIFY"] = lambda peer: peer.respond(answer)
        assert "answer to IDENTIFY" in str(await refusal(nsqd, Config()))


async def test_a_server_that_does_not_negotiate_is_taken_as_it_is() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["IDENTIFY"] = lambda peer: peer.respond(b"OK")
        async with Consumer("t", "ch", nsqd=nsqd.address, config=Config(max_in_flight=9999)):
            await (await nsqd.peer()).expect("RDY 2500")


async def test_the_wrong_thing_inside_a_layer_is_refused() -> None:
    async with ScriptedNsqd() as nsqd:

        def identify(peer: Peer) -> None:
            peer.respond(json.dumps({**IDENTIFIED, "deflate": True}).encode())
            peer.writer.write(Deflate().compress(frame(RESPONSE, b"NO")))

        nsqd.handlers["IDENTIFY"] = identify
        assert "instead of OK" in str(await refusal(nsqd, Config(compression="deflate")))


async def test_a_handshake_does_not_take_for_ever() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.handlers["IDENTIFY"] = lambda peer: None
        config = Config(dial_timeout=0.1, read_timeout=1.0, heartbeat_interval=1.0)
        error = await refusal(nsqd, config)
        assert not error.permanent


# ---- AUTH


def require_auth(nsqd: ScriptedNsqd) -> None:
    nsqd.identified["auth_required"] = True

    def auth(peer: Peer) -> None:
        if peer.bodies[-1] == b"right":
            peer.respond(b'{"identity":"me","identity_url":"","permission_count":1}')
        else:
            peer.fail(b"E_AUTH_FAILED AUTH failed")

    nsqd.handlers["AUTH"] = auth


async def test_the_secret_is_sent_when_it_is_asked_for() -> None:
    async with ScriptedNsqd() as nsqd:
        require_auth(nsqd)
        async with Consumer("t", "ch", nsqd=nsqd.address, config=Config(auth_secret="right")):
            peer = await nsqd.peer(subscribed=False)
            await peer.expect("IDENTIFY", "AUTH", "SUB", "RDY 1")


async def test_a_wrong_secret_is_refused() -> None:
    async with ScriptedNsqd() as nsqd:
        require_auth(nsqd)
        error = await refusal(nsqd, Config(auth_secret="wrong"))
        assert isinstance(error.__cause__, AuthFailed)
        assert "wrong" not in str(error)


async def test_without_a_secret_there_is_no_connection() -> None:
    async with ScriptedNsqd() as nsqd:
        require_auth(nsqd)
        assert "wants an auth_secret" in str(await refusal(nsqd, Config()))
        assert nsqd.peers[0].commands == ["IDENTIFY"]


async def test_the_secret_is_not_sent_unasked() -> None:
    async with ScriptedNsqd() as nsqd:
        async with Consumer("t", "ch", nsqd=nsqd.address, config=Config(auth_secret="right")):
            await (await nsqd.peer()).expect("RDY 1")
        assert not any(command.startswith("AUTH") for command in nsqd.peers[0].commands)


def test_the_secret_does_not_show() -> None:
    assert "right" not in repr(Config(auth_secret="right"))


# ---- dialling


async def test_a_connection_can_come_from_a_given_address() -> None:
    async with ScriptedNsqd() as nsqd:
        config = Config(local_addr="127.0.0.2")
        async with Producer(nsqd.address, config=config) as producer:
            await producer.ping()
            peer = await nsqd.peer(subscribed=False)
            assert peer.writer.get_extra_info("peername")[0] == "127.0.0.2"


async def test_a_connection_that_is_cut_in_the_handshake_is_tried_again() -> None:
    async with ScriptedNsqd() as nsqd:
        attempts = 0

        def identify(peer: Peer) -> None:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                peer.drop()
            else:
                peer.respond(b"OK")

        nsqd.handlers["IDENTIFY"] = identify
        config = Config(reconnect=Reconnect(first=0.01, cap=0.01))
        async with Producer(nsqd.address, config=config) as producer:
            await producer.publish("t", b"x")
        assert attempts == 3


async def test_an_http_port_given_for_the_tcp_port_gets_a_hint(nsqd: Nsqd) -> None:
    async with Producer(nsqd.http_address) as producer:
        with pytest.raises(ConnectFailed, match=r"an HTTP server answers here; .* usually 4150") as caught:
            await producer.publish("t", b"x")
    assert caught.value.permanent
    with pytest.raises(ConnectFailed, match="an HTTP server answers here"):
        await Consumer("t", "ch", nsqd=nsqd.http_address, fail_fast=True).start()


async def test_nsqlookupds_port_gets_a_hint_too() -> None:
    with Nsqlookupd().start() as nsqlookupd:
        with pytest.raises(ConnectFailed, match="nsqlookupd answers here"):
            await Consumer("t", "ch", nsqd=nsqlookupd.tcp_address, fail_fast=True).start()
