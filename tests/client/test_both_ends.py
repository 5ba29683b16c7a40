"""Both ends of the negotiation are ours: client and nsqd, with every layer there is."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest

from nsquark.client import Config, Consumer, NsqdHttp, Producer
from nsquark.errors import ConnectFailed, Unauthorized
from tests.daemon import Nsqd

pytestmark = pytest.mark.usefixtures("tidy")

TLS = Path(__file__).parent / "tls"
CERTIFICATE = f"--tls-cert={TLS / 'cert.pem'}"
KEY = f"--tls-key={TLS / 'key.pem'}"

Compression = Literal["snappy", "deflate"] | None


def config(tls: bool = False, compression: Compression = None, **more: object) -> Config:
    context = ssl.create_default_context(cafile=str(TLS / "cert.pem")) if tls else False
    return Config(tls=context, compression=compression, max_in_flight=50, **more)  # type: ignore[arg-type]


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Nsqd]:
    with Nsqd(tmp_path / "data", CERTIFICATE, KEY, "--https-address=127.0.0.1:0").start() as running:
        yield running


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
async def test_every_layer(secure: Nsqd, tls: bool, compression: Compression) -> None:
    settings = config(tls, compression)
    large = b"large" * 100_000
    async with Producer(secure.tcp_address, config=settings) as producer:
        await producer.publish("t", large)
        await producer.publish_many("t", [b"%d" % n for n in range(1000)])
        await asyncio.gather(*(producer.publish("t", b"x") for _ in range(200)))
    got = []
    async with Consumer("t", "ch", nsqd=secure.tcp_address, config=settings, fail_fast=True) as consumer:
        async for message in consumer:
            message.finish()
            got.append(message.body)
            if len(got) == 1:
                stats = await NsqdHttp(secure.http_address).stats(topic="t")
                (client,) = stats["topics"][0]["channels"][0]["clients"]
                assert (client["tls"], client["snappy"], client["deflate"]) == (
                    tls,
                    compression == "snappy",
                    compression == "deflate",
                )
            if len(got) == 1201:
                break
    assert got == [large, *(b"%d" % n for n in range(1000)), *[b"x"] * 200]


async def test_tls_is_not_spoken_with_an_nsqd_that_has_none(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address, config=config(tls=True)) as producer:
        with pytest.raises(ConnectFailed, match="does not offer TLS"):
            await producer.publish("t", b"x")
    assert (await NsqdHttp(nsqd.http_address).stats())["topics"] == []


@pytest.fixture
async def auth_server() -> AsyncIterator[str]:
    """Lets `right` publish to and subscribe `mine`, and no other client anything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        rule = {"topic": "^mine$", "channels": [".*"], "permissions": ["publish", "subscribe"]}
        body = json.dumps({"ttl": 60, "identity": "me", "authorizations": [rule]}).encode()
        status = b"200 OK" if b"secret=right" in request else b"403 Forbidden"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_authorisation(tmp_path: Path, auth_server: str) -> None:
    with Nsqd(tmp_path / "data", f"--auth-http-address={auth_server}").start() as nsqd:
        address = nsqd.tcp_address
        async with Producer(address, config=config(auth_secret="right")) as producer:
            await producer.publish("mine", b"x")
            with pytest.raises(Unauthorized):
                await producer.publish("theirs", b"x")
            await producer.publish("mine", b"y")
        async with Consumer("mine", "ch", nsqd=address, config=config(auth_secret="right")) as consumer:
            for body in (b"x", b"y"):
                async with await anext(consumer) as message:
                    assert message.body == body
        refused = Consumer("theirs", "ch", nsqd=address, config=config(auth_secret="right"), fail_fast=True)
        with pytest.raises(Unauthorized):
            await refused.start()
        for secret in ("wrong", None):
            async with Producer(address, config=config(auth_secret=secret)) as producer:
                with pytest.raises(ConnectFailed):
                    await producer.publish("mine", b"x")
