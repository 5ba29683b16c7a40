"""{plain, TLS, mTLS} × {no compression, snappy, deflate} × {AUTH, none}: ours against ours, and pynsq's."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Callable

import nsq
import pytest

from nsquark.client import Config, Consumer, Producer
from tests.daemon import PATIENCE, Nsqd, until
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.security.upgraded import connect

SECRET = "s3 cr&et=ü"
BODIES = [b"small", b"again and again " * 20_000, os.urandom(300_000), b"\n" * 1000]

matrix = [
    pytest.mark.parametrize("auth", [False, True], ids=["open", "auth"]),
    pytest.mark.parametrize("compression", ["", "snappy", "deflate"], ids=["none", "snappy", "deflate"]),
    pytest.mark.parametrize("security", ["plain", "tls", "mtls"]),
]


def over_the_matrix(test: Callable[..., object]) -> Callable[..., object]:
    for mark in matrix:
        test = mark(test)
    return test


@pytest.fixture
def flags(
    security: str, auth: bool, authority: Authority, tls_flags: list[str], auth_server: AuthServer
) -> list[str]:
    chosen = []
    if security != "plain":
        chosen += [*tls_flags, "--tls-required=tcp-https"]
    if security == "mtls":
        chosen += ["--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.file}"]
    if auth:
        auth_server.secrets[SECRET] = [entry("^events$", ["^people$", "^$"])]
        chosen += [f"--auth-http-address={auth_server.address}"]
    return chosen


@pytest.fixture
def context(security: str, authority: Authority) -> ssl.SSLContext | None:
    if security == "plain":
        return None
    client = (authority.folder / "client.pem", authority.folder / "client.key")
    return authority.client_context(client if security == "mtls" else None)


async def client_stats(nsqd: Nsqd) -> dict[str, object]:
    _, answer = await nsqd.http("GET", "/stats?format=json&include_mem=false")
    document = json.loads(answer)
    (client,) = document["topics"][0]["channels"][0]["clients"]
    assert isinstance(client, dict)
    return client


@over_the_matrix
async def test_ours_against_ours(
    start: Callable[..., Nsqd],
    flags: list[str],
    context: ssl.SSLContext | None,
    compression: str,
    auth: bool,
    security: str,
    auth_server: AuthServer,
) -> None:
    nsqd = start(*flags)
    config = Config(
        tls=context or False,
        compression=compression or None,  # type: ignore[arg-type]
        auth_secret=SECRET if auth else None,
        max_in_flight=100,
    )
    got = []
    async with Producer(nsqd.tcp_address, config=config) as producer, asyncio.timeout(PATIENCE):
        for body in BODIES:
            await producer.publish("events", body)
        await producer.publish_many("events", BODIES)
        await asyncio.gather(*(producer.publish("events", b"one of many %d" % n) for n in range(500)))
        async with Consumer("events", "people", nsqd=nsqd.tcp_address, config=config) as consumer:
            async for message in consumer:
                got.append(message.body)
                message.finish()
                if len(got) == 2 * len(BODIES) + 500:
                    break
            await until(lambda: finished(nsqd, len(got)))
            told = await client_stats(nsqd)
    assert got[:8] == BODIES * 2
    assert sorted(got[8:]) == sorted(b"one of many %d" % n for n in range(500))
    assert told["tls"] is (security != "plain")
    assert told["tls_version"] == ("TLS1.3" if security != "plain" else "")
    assert told["tls_cipher_suite"] == ("TLS_AES_128_GCM_SHA256" if security != "plain" else "")
    assert told["tls_negotiated_protocol_is_mutual"] is (security != "plain")
    assert told["snappy"] is (compression == "snappy")
    assert told["deflate"] is (compression == "deflate")
    assert told.get("authed") is (True if auth else None)
    assert told.get("auth_identity") == (f"who knows {len(SECRET)}" if auth else None)
    assert told.get("auth_identity_url") == ("http://who.example/" if auth else None)
    if auth:
        method, asked = auth_server.asked[0]
        assert (method, list(asked)) == ("GET", ["common_name", "remote_ip", "secret", "tls"])
        assert asked == {
            "secret": SECRET,
            "remote_ip": "127.0.0.1",
            "tls": "false" if security == "plain" else "true",
            "common_name": "a client" if security == "mtls" else "",
        }
        assert "Accept: application/vnd.nsq; version=1.0" in auth_server.heads[0]
        assert not [line for line in nsqd.lines if "s3" in line], "the secret is in the log"


async def finished(nsqd: Nsqd, count: int) -> bool:
    return (await client_stats(nsqd))["finish_count"] == count


@over_the_matrix
async def test_a_conversation_by_hand(
    start: Callable[..., Nsqd],
    flags: list[str],
    context: ssl.SSLContext | None,
    compression: str,
    auth: bool,
) -> None:
    """Every command, and heartbeats, through all the layers."""
    nsqd = start(*flags)
    client = await connect(
        nsqd, context, compression, SECRET if auth else "", heartbeat_interval=1000, msg_timeout=1500
    )
    async with client:
        await client.pub("events", b"one")
        await client.mpub("events", [b"two", b"three"])
        await client.dpub("events", 1200, b"four")
        await client.sub("events", "people", rdy=10)
        one, two, three = [await client.message() for _ in range(3)]
        client.fin(one)
        client.req(two)
        client.touch(three)
        again = await client.message()
        assert (again.id, again.attempts) == (two.id, 2)
        four = await client.message()  # comes after a heartbeat
        assert four.body == b"four"
        for message in (again, three, four):
            client.fin(message)
        await client.caught_up()
        assert client.heartbeats >= 1
        client.send(b"CLS\n")
        assert (await client.answer()).data == b"CLOSE_WAIT"
        client.send(b"BYE\n")
        assert await client.error() == b"E_INVALID invalid command BYE"
        await client.closed()


@over_the_matrix
async def test_pynsq(
    start: Callable[..., Nsqd],
    flags: list[str],
    compression: str,
    auth: bool,
    security: str,
    authority: Authority,
) -> None:
    nsqd = start(*flags)
    settings: dict[str, object] = {"snappy": compression == "snappy", "deflate": compression == "deflate"}
    if security != "plain":
        settings["tls_v1"] = True
        settings["tls_options"] = {"ca_certs": str(authority.file)}
    if security == "mtls":
        settings["tls_options"] = {
            "ca_certs": str(authority.file),
            "certfile": str(authority.folder / "client.pem"),
            "keyfile": str(authority.folder / "client.key"),
        }
    if auth:
        settings["auth_secret"] = SECRET
    # Its snappy loses the connection when a chunk comes in two pieces, with any nsqd.
    bodies = [body[:1000] for body in BODIES] if compression == "snappy" else BODIES
    address = f"localhost:{nsqd.tcp_port}"  # it verifies the host's name, and takes no number for one
    writer = nsq.Writer([address], reconnect_interval=3600.0, **settings)
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def take(message: nsq.Message) -> bool:
        got.put_nowait(message.body)
        return True

    try:
        await until(lambda: writer.conns)
        for body in bodies:
            answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            await until(lambda: next(iter(writer.conns.values())).stream is not None)
            writer.pub("events", body, callback=lambda _, data, answer=answer: answer.set_result(data))
            async with asyncio.timeout(PATIENCE):
                assert await answer == b"OK"
        reader = nsq.Reader(
            topic="events",
            channel="people",
            message_handler=take,
            nsqd_tcp_addresses=[address],
            max_in_flight=10,
            **settings,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                assert [await got.get() for _ in bodies] == bodies
        finally:
            reader.close()
    finally:
        for conn in list(writer.conns.values()):
            conn.close()
