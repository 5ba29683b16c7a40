"""nsqd's HTTP API against the real broker: every route, its errors in NSQ's order, and what it does."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.kernel import KERNEL
from nsquark.version import VERSION
from tests.daemon import sized
from tests.http.served import Client as HttpClient
from tests.http.served import chunked, get, post
from tests.nsqd.api import Api, running
from tests.nsqd.harness import refuse_commits

MAX_MSG, MAX_BODY = 100, 1000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path, max_msg_size=MAX_MSG, max_body_size=MAX_BODY, max_req_timeout=60.0) as api:
        yield api


def error(message: str) -> bytes:
    return b'{"message":"%b"}' % message.encode()


def refused(reason: str) -> bytes:
    return b'{"message":"NOT_STORED","reason":"%b"}' % reason.encode()


def binary(*bodies: bytes, count: int | None = None) -> bytes:
    return struct.pack(">i", len(bodies) if count is None else count) + b"".join(map(sized, bodies))


# ---- the node


async def test_ping(api: Api) -> None:
    answer = await api.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert "X-Nsq-Content-Type" not in answer.headers
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_a_node_whose_disk_refuses_is_alive_and_not_ready(api: Api) -> None:
    for path in ("/live", "/ready"):
        answer = await api.get(path)
        assert (answer.status, answer.body) == (200, b"OK")
    api.broker.unhealthy("No space left on device")
    answer = await api.get("/ready")
    assert (answer.status, answer.body) == (503, b"NOK - No space left on device")
    assert (await api.get("/live")).status == 200
    api.broker.healthy()
    api.broker.unhealthy("a damaged segment", ("t", "damage"))  # which keeps no message from being taken
    assert (await api.get("/ready")).status == 200


async def test_which_kernel_runs_is_told(api: Api) -> None:
    for path in ("/info", "/stats?format=json"):
        assert json.loads((await api.get(path)).body)["kernel"] == KERNEL
    assert f'nsqd_info{{kernel="{KERNEL}"' in (await api.get("/metrics")).body.decode()


async def test_ping_tells_bad_health(api: Api) -> None:
    api.broker.unhealthy("no space left on device")
    answer = await api.get("/ping")
    assert (answer.status, answer.body) == (500, b"NOK - no space left on device")
    api.broker.healthy()
    assert (await api.get("/ping")).status == 200


async def test_info(api: Api) -> None:
    answer = await api.get("/info?x=%zz")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    info = json.loads(answer.body)
    assert list(info) == [
        "version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time",
        "max_heartbeat_interval", "max_output_buffer_size", "max_output_buffer_timeout", "max_deflate_level",
        "topology_zone", "topology_region", "nsquark_version", "kernel",
    ]  # fmt: skip
    assert info["version"] == "1.3.0"
    assert info["nsquark_version"] == VERSION
    assert (info["tcp_port"], info["http_port"]) == (api.broker.tcp_port, api.broker.http_port)
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_timeout"] == 30_000_000_000
    assert isinstance(info["start_time"], int)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/ping", 405, "GET, OPTIONS"),
        ("GET", "/pub", 405, "OPTIONS, POST"),
        ("DELETE", "/config/id", 405, "GET, OPTIONS, PUT"),
        ("OPTIONS", "/topic/create", 200, "OPTIONS, POST"),
    ],
)
async def test_methods(api: Api, method: str, path: str, status: int, allow: str) -> None:
    answer = await api.post(path, method=method)
    assert (answer.status, answer.headers["Allow"]) == (status, allow)


@pytest.mark.parametrize("path", ["/", "/pubs", "/tombstone_topic", "/config", "/config/", "/topic"])
async def test_unknown_paths(api: Api, path: str) -> None:
    answer = await api.get(path)
    assert (answer.status, answer.body) == (404, error("NOT_FOUND"))


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_names_from_before_1_0(api: Api, method: str) -> None:
    async def ask(path: str) -> tuple[int, bytes]:
        answer = await api.post(path, method=method)
        return answer.status, answer.body

    assert await ask("/create_topic?topic=t") == (200, b"")
    assert await ask("/create_channel?topic=t&channel=c") == (200, b"")
    assert (await api.post("/put?topic=t", b"one")).body == b"OK"
    assert (await api.post("/mput?topic=t", b"two\nthree")).body == b"OK"
    assert (await api.topic("t"))["channels"][0]["depth"] == 3
    assert await ask("/empty_channel?topic=t&channel=c") == (200, b"")
    for verb, paused in (("pause", True), ("unpause", False)):
        assert await ask(f"/{verb}_topic?topic=t") == (200, b"")
        assert await ask(f"/{verb}_channel?topic=t&channel=c") == (200, b"")
        topic = await api.topic("t")
        assert (topic["paused"], topic["channels"][0]["paused"]) == (paused, paused)
    assert await ask("/empty_topic?topic=t") == (200, b"")
    assert await ask("/delete_channel?topic=t&channel=c") == (200, b"")
    assert await ask("/delete_channel?topic=t&channel=c") == (404, error("CHANNEL_NOT_FOUND"))
    assert await ask("/delete_topic?topic=t") == (200, b"")
    assert (await api.get("/put?topic=t")).headers["Allow"] == "OPTIONS, POST"


# ---- /pub


async def test_pub_stores_the_body_as_it_is(api: Api) -> None:
    body = bytes(range(100))
    answer = await api.post("/pub?topic=t", body)
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    client = await api.client()
    await client.sub("t", "ch", rdy=1)
    assert (await client.message()).body == body


async def test_pub_takes_chunks(api: Api) -> None:
    assert (await api.http.ask(chunked("/pub?topic=t", b"ab", b"c"))).body == b"OK"
    assert (await api.topic("t"))["message_bytes"] == 3


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ("", b"x" * 101, 413, "MSG_TOO_BIG"),
        ("?topic=bad!", b"", 400, "MSG_EMPTY"),
        ("?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("?a;b", b"x", 400, "INVALID_REQUEST"),
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("?topic=", b"x", 400, "INVALID_TOPIC"),
        ("?topic=bad!&defer=x", b"x", 400, "INVALID_TOPIC"),
        ("?topic=" + "x" * 65, b"x", 400, "INVALID_TOPIC"),
        ("?topic=t%0A", b"x", 400, "INVALID_TOPIC"),
    ],
)
async def test_pub_errors_in_order(api: Api, query: str, body: bytes, status: int, message: str) -> None:
    answer = await api.post("/pub" + query, body)
    assert (answer.status, answer.body) == (status, error(message))
    assert api.broker.topics == {}


async def test_pub_too_big_in_chunks_ends_the_connection(api: Api) -> None:
    answer = await api.http.ask(chunked("/pub?topic=t", b"x" * 60, b"x" * 41))
    assert (answer.status, answer.body) == (413, error("MSG_TOO_BIG"))
    assert await api.http.closed()


@pytest.mark.parametrize("defer", ["", "soon", "-1", "60001", "1.5", "0x10", "1_0", "٣", "9" * 30])
async def test_a_bad_defer_is_refused_and_the_topic_is_there(api: Api, defer: str) -> None:
    quoted = "".join(f"%{byte:02X}" for byte in defer.encode())
    answer = await api.post(f"/pub?topic=t&defer={quoted}", b"x")
    assert (answer.status, answer.body) == (400, error("INVALID_DEFER"))
    assert (await api.topic("t"))["message_count"] == 0


async def test_defer_puts_a_message_off(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    await api.done("/channel/create?topic=t&channel=ch")
    await api.done("/pub?topic=t&defer=60000", b"later")
    await api.done("/pub?topic=t&defer=%2B0", b"now")
    (channel,) = (await api.topic("t"))["channels"]
    assert (channel["deferred_count"], channel["depth"]) == (1, 1)


async def test_pipelined_pubs_are_stored_in_order(api: Api) -> None:
    api.http.send(b"".join(post("/pub?topic=t", b"%d" % i) for i in range(1000)))
    for _ in range(1000):
        assert (await api.http.answer()).body == b"OK"
    client = await api.client()
    await client.sub("t", "ch", rdy=1000)
    assert [(await client.message()).body for _ in range(1000)] == [b"%d" % i for i in range(1000)]


async def test_a_publish_that_cannot_be_stored_is_answered_with_the_reason(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.done("/topic/create?topic=t")
    refuse_commits(monkeypatch, api.broker.topics["t"], OSError(28, "No space left on device"))
    for path in ("/pub?topic=t", "/mpub?topic=t"):
        answer = await api.post(path, b"x")
        assert (answer.status, answer.body) == (503, refused("No space left on device"))
    assert (await api.get("/ping")).status == 500


async def test_a_publish_to_a_topic_that_is_deleted_meanwhile_is_answered(api: Api) -> None:
    await api.done("/topic/create?topic=t")
    api.http.send(post("/pub?topic=t", b"x") + post("/topic/delete?topic=t", b""))
    assert (await api.http.answer()).status in (200, 503)
    assert (await api.http.answer()).status == 200


# ---- /mpub


@pytest.mark.parametrize(
    ("body", "bodies"),
    [
        (b"a\nb\nc", [b"a", b"b", b"c"]),
        (b"\n\na\r\n\nb\n", [b"a\r", b"b"]),
        (b"x" * MAX_MSG + b"\n" + b"y" * MAX_MSG, [b"x" * MAX_MSG, b"y" * MAX_MSG]),
        (b"", []),
        (b"\n\n\n", []),
    ],
)
@pytest.mark.parametrize("flag", ["", "&binary=false", "&binary=0"])
async def test_mpub_splits_lines(api: Api, body: bytes, bodies: list[bytes], flag: str) -> None:
    answer = await api.post("/mpub?topic=t" + flag, body)
    assert (answer.status, answer.body) == (200, b"OK")
    topic = await api.topic("t")
    assert (topic["message_count"], topic["message_bytes"]) == (len(bodies), sum(map(len, bodies)))
    if bodies:
        client = await api.client()
        await client.sub("t", "ch", rdy=10)
        assert [(await client.message()).body for _ in bodies] == bodies


@pytest.mark.parametrize("flag", ["true", "1", "TRUE", "", "yes"])
async def test_mpub_binary_takes_frames(api: Api, flag: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = await api.post(f"/mpub?topic=t&binary={flag}", binary(b"one", b"t\nwo", b"\0") + b"ignored")
    assert (answer.status, answer.body) == (200, b"OK")
    assert ("deprecated" in caplog.text) == (flag not in ("true", "1"))
    client = await api.client()
    await client.sub("t", "ch", rdy=10)
    assert [(await client.message()).body for _ in range(3)] == [b"one", b"t\nwo", b"\0"]


@pytest.mark.parametrize(
    ("query", "body", "status", "message"),
    [
        ("", b"x" * (MAX_BODY + 1), 413, "BODY_TOO_BIG"),
        ("?topic=%z", b"", 400, "INVALID_REQUEST"),
        ("", b"", 400, "MISSING_ARG_TOPIC"),
        ("?topic=bad!", b"", 400, "INVALID_TOPIC"),
        ("?topic=t", b"ok\n" + b"x" * 101, 413, "MSG_TOO_BIG"),
        ("?topic=t&binary=1", b"", 413, "BAD_BODY"),
        ("?topic=t&binary=1", b"\0\0\0", 413, "BAD_BODY"),
        ("?topic=t&binary=1", binary(count=0), 413, "BAD_BODY"),
        ("?topic=t&binary=1", binary(count=-1), 413, "BAD_BODY"),
        ("?topic=t&binary=1", binary(b"a", count=200), 413, "BAD_BODY"),
        ("?topic=t&binary=1", binary(b"a", b""), 413, "BAD_MESSAGE"),
        ("?topic=t&binary=1", binary(b"a", b"x" * 101), 413, "BAD_MESSAGE"),
        ("?topic=t&binary=1", binary(b"a", count=2), 413, "BAD_MESSAGE"),
        ("?topic=t&binary=1", binary(b"abc")[:-1], 413, "BAD_MESSAGE"),
        ("?topic=t&binary=1", binary(count=1) + b"\xff\xff\xff\xff", 413, "BAD_MESSAGE"),
    ],
)
async def test_mpub_errors_publish_nothing(
    api: Api, query: str, body: bytes, status: int, message: str
) -> None:
    answer = await api.post("/mpub" + query, body)
    assert (answer.status, answer.body) == (status, error(message))
    assert all(topic.message_count == 0 for topic in api.broker.topics.values())


# ---- topics and channels


@pytest.mark.parametrize("name", ["t", "a.b-c_D9", ".", "..", "x" * 64, "t%23ephemeral", "t#ephemeral"])
async def test_topics_are_created_once_and_deleted_once(api: Api, name: str) -> None:
    for _ in range(2):
        answer = await api.post(f"/topic/create?topic={name}")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
        assert "Content-Type" not in answer.headers
    assert list(api.broker.topics) == [name.replace("%23", "#")]
    assert (await api.post(f"/topic/delete?topic={name}")).status == 200
    assert api.broker.topics == {}
    answer = await api.post(f"/topic/delete?topic={name}")
    assert (answer.status, answer.body) == (404, error("TOPIC_NOT_FOUND"))


TOPIC_VERBS = ["create", "delete", "empty", "pause", "unpause"]
NAMES_CHECKED = ["create", "empty"]


@pytest.mark.parametrize("verb", TOPIC_VERBS)
async def test_topic_errors_in_order(api: Api, verb: str) -> None:
    path = f"/topic/{verb}"
    bad_name = (400, "INVALID_TOPIC") if verb in NAMES_CHECKED else (404, "TOPIC_NOT_FOUND")
    for query, status, message in [
        ("?topic=%z", 400, "INVALID_REQUEST"),
        ("", 400, "MISSING_ARG_TOPIC"),
        ("?Topic=t", 400, "MISSING_ARG_TOPIC"),
        ("?topic=bad!", *bad_name),
        ("?topic=none", 404, "TOPIC_NOT_FOUND"),
    ]:  # fmt: skip
        if verb == "create" and status == 404:
            continue
        answer = await api.post(path + query)
        assert (answer.status, answer.body) == (status, error(message))


@pytest.mark.parametrize("verb", TOPIC_VERBS)
async def test_channel_errors_in_order(api: Api, verb: str) -> None:
    path = f"/channel/{verb}"
    steps = [
        ("?topic=%z", 400, "INVALID_REQUEST"),
        ("?channel=bad!", 400, "MISSING_ARG_TOPIC"),
        ("?topic=bad!", 400, "INVALID_ARG_TOPIC"),
        ("?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("?topic=t&channel=bad!", 400, "INVALID_ARG_CHANNEL"),
        ("?topic=t&channel=ch", 404, "TOPIC_NOT_FOUND"),
    ]
    for query, status, message in steps:
        answer = await api.post(path + query)
        assert (answer.status, answer.body) == (status, error(message))
    assert api.broker.topics == {}
    if verb != "create":
        await api.done("/topic/create?topic=t")
        answer = await api.post(path + "?topic=t&channel=ch")
        assert (answer.status, answer.body) == (404, error("CHANNEL_NOT_FOUND"))


async def test_form_bodies_are_ignored(api: Api) -> None:
    answer = await api.post("/topic/create", b"topic=t")
    assert (answer.status, answer.body) == (400, error("MISSING_ARG_TOPIC"))


async def test_a_topic_is_emptied_and_its_channels_are_not(api: Api) -> None:
    await api.done("/mpub?topic=t", b"a\nb")
    await api.done("/topic/empty?topic=t")
    topic = await api.topic("t")
    assert (topic["depth"], topic["message_count"]) == (0, 2)
    await api.done("/channel/create?topic=t&channel=ch")
    await api.done("/pub?topic=t", b"c")
    await api.done("/topic/empty?topic=t")
    (channel,) = (await api.topic("t"))["channels"]
    assert channel["depth"] == 1
    await api.done("/channel/empty?topic=t&channel=ch")
    (channel,) = (await api.topic("t"))["channels"]
    assert channel["depth"] == 0


async def test_pause_and_unpause_are_on_disk_when_answered(api: Api, tmp_path: Path) -> None:
    await api.done("/topic/create?topic=t")
    await api.done("/channel/create?topic=t&channel=ch")

    def on_disk() -> tuple[bool, bool]:
        (topic,) = json.loads((tmp_path / "nsqd.dat").read_text())["topics"]
        return topic["paused"], topic["channels"][0]["paused"]

    await api.done("/topic/pause?topic=t")
    assert on_disk() == (True, False)
    await api.done("/channel/pause?topic=t&channel=ch")
    assert on_disk() == (True, True)
    topic = await api.topic("t")
    assert (topic["paused"], topic["channels"][0]["paused"]) == (True, True)
    for _ in range(2):
        await api.done("/topic/unpause?topic=t")
        await api.done("/channel/unpause?topic=t&channel=ch")
        assert on_disk() == (False, False)


async def test_a_deletion_is_on_disk_when_answered(api: Api, tmp_path: Path) -> None:
    await api.done("/topic/create?topic=t")
    await api.done("/channel/create?topic=t&channel=ch")
    await api.done("/channel/delete?topic=t&channel=ch")
    (topic,) = json.loads((tmp_path / "nsqd.dat").read_text())["topics"]
    assert topic["channels"] is None
    await api.done("/topic/delete?topic=t")
    assert json.loads((tmp_path / "nsqd.dat").read_text())["topics"] is None


@pytest.mark.parametrize("path", ["/topic/delete?topic=t", "/channel/delete?topic=t&channel=ch"])
async def test_deleting_disconnects_the_consumers(api: Api, path: str) -> None:
    client = await api.client()
    await client.sub("t", "ch", rdy=1)
    await api.done(path)
    await client.closed()


async def test_a_metadata_file_that_cannot_be_written_is_told_with_the_reason(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.done("/topic/create?topic=t")

    async def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(api.broker, "save_metadata", fail)
    answer = await api.post("/topic/pause?topic=t")
    assert (answer.status, answer.body) == (503, refused("No space left on device"))


# ---- the whole


async def test_many_connections_publish_at_once(api: Api) -> None:
    async def publish() -> None:
        http = await HttpClient.connect(api.broker.http_port)
        for _ in range(20):
            assert (await http.ask(post("/pub?topic=t", b"x"))).body == b"OK"
        http.close()

    await asyncio.gather(*(publish() for _ in range(20)))
    assert (await api.topic("t"))["message_count"] == 400


async def test_publishes_are_not_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsquark.http")
    await api.done("/pub?topic=t", b"x")
    await api.done("/mpub?topic=t", b"x")
    assert not caplog.records or all("pub" not in record.getMessage() for record in caplog.records)
    await api.get("/ping")
    assert any(record.getMessage().startswith("200 GET /ping (127.0.0.1:") for record in caplog.records)


async def test_an_idle_connection_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        http = await HttpClient.connect(api.broker.http_port)
        assert (await http.ask(get("/ping"))).status == 200
    assert await http.closed()
    http.close()
