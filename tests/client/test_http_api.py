"""The admin clients: nsqd's API on a real nsqd."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nsquark.client import Config, Consumer, NsqdHttp, NsqlookupdHttp
from nsquark.errors import UsageError
from nsquark.http.client.protocol import BadStatus
from tests.daemon import Nsqd, until

pytestmark = pytest.mark.usefixtures("tidy")
TLS = Path(__file__).parent / "tls"


async def test_an_nsqd(nsqd: Nsqd) -> None:
    http = NsqdHttp(nsqd.http_address)
    await http.ping()
    assert (await http.info())["version"] == "1.3.0"
    await http.create_topic("t#ephemeral")
    await http.create_channel("t#ephemeral", "ch")
    await http.pause_channel("t#ephemeral", "ch")
    await http.publish("t#ephemeral", b"one\ntwo")
    await http.publish("t#ephemeral", b"later", delay=60)
    await http.publish_many("t#ephemeral", [b"a\nb", b"c"])
    stats = await http.stats(topic="t#ephemeral", include_mem=False)
    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    assert (topic["message_count"], channel["depth"], channel["deferred_count"]) == (4, 3, 1)
    assert channel["paused"]
    assert "memory" not in stats
    await http.unpause_channel("t#ephemeral", "ch")
    await http.pause_topic("t#ephemeral")
    await http.unpause_topic("t#ephemeral")
    await http.empty_channel("t#ephemeral", "ch")
    await http.empty_topic("t#ephemeral")
    await http.delete_channel("t#ephemeral", "ch")
    assert (await http.stats())["topics"] == []
    await http.create_topic("t")
    await http.delete_topic("t")
    assert (await http.stats())["topics"] == []


async def test_settings(nsqd: Nsqd) -> None:
    http = NsqdHttp(f"http://{nsqd.http_address}/")
    assert await http.config("max_msg_size") == 1 << 20
    await http.set_config("log_level", "debug")
    assert await http.config("log_level") == 1
    with pytest.raises(BadStatus) as caught:
        await http.config("no/such")
    assert caught.value.status in (400, 404)


async def test_what_nsqd_refuses_is_told(nsqd: Nsqd) -> None:
    with pytest.raises(BadStatus, match="TOPIC_NOT_FOUND") as caught:
        await NsqdHttp(nsqd.http_address).delete_topic("none")
    assert (caught.value.status, caught.value.message) == (404, "TOPIC_NOT_FOUND")
    with pytest.raises(BadStatus, match="INVALID_TOPIC"):
        await NsqdHttp(nsqd.http_address).publish("a b&topic=t", b"x")


async def test_a_daemon_that_wants_tls_gets_it() -> None:
    asked: list[bytes] = []

    async def secure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(
            b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\nContent-Length: 2\r\n\r\n{}"
        )
        writer.close()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https.sockets[0].getsockname()[1]
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    https = await asyncio.start_server(secure, "127.0.0.1", 0, ssl=context)
    http = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with https, http:
        address = f"127.0.0.1:{http.sockets[0].getsockname()[1]}"
        trusted = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        assert await NsqdHttp(address, tls=trusted).info() == {}
        assert asked == [b"GET /info HTTP/1.1"]


async def test_an_nsqlookupd_of_old_wraps_its_answers() -> None:
    answers = {"/topics": {"topics": ["t"]}, "/nodes": {"producers": [{"hostname": "h"}]}}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        body = json.dumps({"status_code": 200, "status_txt": "OK", "data": answers[path]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        lookupd = NsqlookupdHttp(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await lookupd.topics() == ["t"]
        assert await lookupd.nodes() == [{"hostname": "h"}]


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(UsageError):
        NsqdHttp("ftp://somewhere")


# ---- the log, and dead letters


async def test_the_log_of_an_nsqd(nsqd: Nsqd) -> None:
    http = NsqdHttp(nsqd.http_address)
    await http.create_topic("t")
    await http.create_channel("t", "ch")
    before = datetime.now(UTC) - timedelta(minutes=1)
    await http.publish_many("t", [b"a", b"b", b"\xff\x00"])
    log = await http.range("t", at=before, channel="ch", commit=1)
    assert (log["first"], log["next"], log["position"]) == (0, 3, 0)
    assert log["channel"]["position"] == 1
    assert (await http.range("t", wait=0.05, epoch=log["epoch"]))["next"] == 3
    assert (await http.range("t", wait=60.0, start=0))["next"] == 3

    assert (await http.commit("t", "ch", 2, epoch=log["epoch"]))["position"] == 2
    assert [each["body"] for each in await http.peek("t", "ch")] == [b"\xff\x00"]
    for to, position in (("earliest", 0), ("latest", 3), (1, 1), (before, 0)):
        assert (await http.seek("t", "ch", to))["position"] == position  # type: ignore[arg-type]
    with pytest.raises(BadStatus, match="POSITION_NOT_REACHED"):
        await http.seek("t", "ch", 4)
    with pytest.raises(BadStatus, match="EPOCH_CHANGED"):
        await http.seek("t", "ch", "latest", epoch="0" * 16)

    assert [each["body"] for each in await http.peek("t", start=1, limit=1)] == [b"b"]
    assert [each["position"] for each in await http.peek("t", limit=2, max_bytes=1000)] == [1, 2]
    assert await http.peek("t", "ch", state="in_flight") == []
    with pytest.raises(UsageError, match="state"):
        await http.peek("t", state="ready")
    with pytest.raises(UsageError, match="start"):
        await http.peek("t", "ch", start=0)


async def test_dead_letters_of_an_nsqd(nsqd: Nsqd) -> None:
    http = NsqdHttp(nsqd.http_address)
    await http.create_topic("t")
    await http.create_channel("t", "ch")
    assert await http.max_attempts("t", "ch", 1) == 1
    await http.publish("t", b"x")
    settings = Config(backoff=None, max_attempts=0)
    async with Consumer("t", "ch", nsqd=nsqd.tcp_address, config=settings) as consumer:
        (await anext(consumer)).requeue(0.0)
        await until(lambda: _dead(http))
        assert await http.max_attempts("t", "ch", None) == 0
        redelivered = await http.redeliver("t", "ch", limit=5)
        assert redelivered == {"dead_topic": "t.ch.dead", "redelivered": 1, "skipped": 0}
        message = await anext(consumer)
        assert (message.body, message.attempts) == (b"x", 1)
        message.finish()
    with pytest.raises(BadStatus, match="DEAD_LETTER_NOT_FOUND"):
        await http.redeliver("t", "ch", id=7)


async def _dead(http: NsqdHttp) -> bool:
    stats = await http.stats(topic="t.ch.dead")
    return any(each["depth"] for topic in stats["topics"] for each in topic["channels"])
