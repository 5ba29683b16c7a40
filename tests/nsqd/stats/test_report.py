"""`/stats`: what is told, in which order, and when it is null."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from nsquark.nsqd.stats import report as stats
from nsquark.version import VERSION
from tests.daemon import identify
from tests.nsqd.api import Api, running

NO_LATENCY = {"count": 0, "percentiles": None}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with running(tmp_path) as api:
        yield api


async def test_an_empty_node(api: Api) -> None:
    told = await api.stats()
    assert list(told) == [
        "version", "health", "start_time", "topics", "memory", "producers", "nsquark_version", "kernel"
    ]  # fmt: skip
    assert (told["version"], told["nsquark_version"], told["health"]) == ("1.3.0", VERSION, "OK")
    assert told["topics"] == []
    assert told["producers"] is None
    assert told["start_time"] == int(api.broker.start_time)


async def test_what_is_beyond_the_memory_queue_is_the_backend_depth(tmp_path: Path) -> None:
    async with running(tmp_path, mem_queue_size=3) as api:
        for name in ("a", "b%23ephemeral"):
            await api.done(f"/mpub?topic={name}", b"1\n2\n3\n4\n5")
        topic = api.broker.topics["a"]
        for channel in (None, "ch"):
            if channel is not None:
                await api.done(f"/channel/create?topic=a&channel={channel}")
            for idle in (False, True):  # an idle log has nothing in memory
                if idle:
                    topic.log.tail.clear()
                (told,) = (await api.stats("&topic=a"))["topics"]
                holder = told["channels"][0] if channel is not None else told
                assert (holder["depth"], holder["backend_depth"]) == (5, 2)
        (told,) = (await api.stats("&topic=b%23ephemeral"))["topics"]
        assert (told["depth"], told["backend_depth"]) == (3, 0)


async def test_memory_has_nsqs_keys(api: Api) -> None:
    memory = (await api.stats())["memory"]
    assert list(memory) == [
        "heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
        "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs",
    ]  # fmt: skip
    assert all(isinstance(value, int) and value >= 0 for value in memory.values())
    assert memory["heap_objects"] > 1000
    assert memory["heap_in_use_bytes"] > 1_000_000
    assert "memory" not in await api.stats("&include_mem=false")
    assert "memory" in await api.stats("&include_mem=no")


async def test_topics_and_channels_are_sorted_and_whole(api: Api) -> None:
    for name in ("b", "a"):
        await api.done(f"/mpub?topic={name}", b"one\ntwo")
    for name in ("y", "x"):
        await api.done(f"/channel/create?topic=a&channel={name}")
    await api.done("/topic/pause?topic=b")
    told = await api.stats()
    assert [topic["topic_name"] for topic in told["topics"]] == ["a", "b"]
    first, second = told["topics"]
    channel = {
        "channel_name": "x", "depth": 0, "backend_depth": 0, "in_flight_count": 0, "deferred_count": 0,
        "message_count": 0, "requeue_count": 0, "timeout_count": 0, "client_count": 0, "clients": [],
        "paused": False, "e2e_processing_latency": NO_LATENCY, "dead_letter_count": 0, "max_attempts": 0,
        "held_messages": 0, "held_bytes": 0, "held_segments": 0, "idle_since": ANY, "hold_timeout": 0,
        "holds_log": True,
    }  # fmt: skip
    backlog = {**channel, "channel_name": "y", "depth": 2, "message_count": 2}
    backlog |= {"held_messages": 2, "held_bytes": first["log_bytes"], "held_segments": 1}
    assert first["channels"] == [channel, backlog]
    assert abs(first["channels"][0]["idle_since"] - time.time()) < 3600
    assert list(first["channels"][0]) == list(channel)
    topic = {
        "topic_name": "b", "channels": [], "depth": 2, "backend_depth": 0, "message_count": 2,
        "message_bytes": 6, "paused": True, "e2e_processing_latency": NO_LATENCY,
        "log_bytes": first["log_bytes"], "log_messages": 2, "retention_bytes": 0, "retention_time": 0,
    }  # fmt: skip
    assert second == topic
    assert list(second) == list(topic)


async def test_filters(api: Api) -> None:
    for topic, channels in [("a", "xy"), ("b", "x"), ("c", "")]:
        await api.done(f"/topic/create?topic={topic}")
        for channel in channels:
            await api.done(f"/channel/create?topic={topic}&channel={channel}")

    async def names(query: str) -> object:
        told = await api.stats(query)
        return told["topics"] and {
            topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
            for topic in told["topics"]
        }

    assert await names("") == {"a": ["x", "y"], "b": ["x"], "c": []}
    assert await names("&topic=a") == {"a": ["x", "y"]}
    assert await names("&topic=a&channel=y") == {"a": ["y"]}
    assert await names("&channel=x") == {"a": ["x"], "b": ["x"]}
    assert await names("&topic=c&channel=x") == []
    assert await names("&channel=z") == []
    assert await names("&topic=z") is None
    assert await names("&topic=&channel=") == await names("")


async def test_a_bad_query_is_refused(api: Api) -> None:
    answer = await api.get("/stats?format=json;topic=x")
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_REQUEST"}')


async def test_a_consumer(api: Api) -> None:
    client = await api.client()
    await client.ask(identify(client_id="me", hostname="box", user_agent="<kit>/1 & \u00e4"))
    await client.sub("t", "ch", rdy=2)
    await api.done("/mpub?topic=t", b"a\nb\nc")
    client.fin(await client.message())
    client.req(await client.message())
    for _ in range(2):
        await client.message()
    answer = await api.get("/stats?format=json")
    assert b"\\u003ckit\\u003e/1 \\u0026 \xc3\xa4" in answer.body
    (channel,) = (await api.topic("t"))["channels"]
    assert (channel["client_count"], channel["requeue_count"], channel["in_flight_count"]) == (1, 1, 2)
    (told,) = channel["clients"]
    expected = {
        "client_id": "me", "hostname": "box", "version": "V2",
        "remote_address": f"127.0.0.1:{client.writer.get_extra_info('sockname')[1]}", "state": 3,
        "ready_count": 2, "in_flight_count": 2, "message_count": 4, "finish_count": 1, "requeue_count": 1,
        "connect_ts": told["connect_ts"], "sample_rate": 0, "deflate": False, "snappy": False,
        "user_agent": "<kit>/1 & ä", "tls": False, "tls_cipher_suite": "", "tls_version": "",
        "tls_negotiated_protocol": "", "tls_negotiated_protocol_is_mutual": False,
    }  # fmt: skip
    assert told == expected
    assert list(told) == list(expected)
    assert abs(told["connect_ts"] - time.time()) < 60
    assert (await api.stats())["producers"] is None


async def test_clients_can_be_left_out(api: Api) -> None:
    client = await api.client()
    await client.sub("t", "ch")
    await client.pub("t", b"x")
    for flag, told in [
        ("false", False),
        ("0", False),
        ("true", True),
        ("1", True),
        ("FALSE", True),
        ("", True),
    ]:
        answer = await api.stats(f"&include_clients={flag}")
        (channel,) = answer["topics"][0]["channels"]
        assert channel["client_count"] == 1
        assert (channel["clients"] is not None) == told
        assert (answer["producers"] is not None) == told


async def test_producers_with_what_they_published(api: Api) -> None:
    client = await api.client()
    await client.pub("a", b"x")
    await client.mpub("b", [b"x", b"y"])
    await client.pub("a", b"x")
    await api.done("/pub?topic=a", b"by HTTP")
    (told,) = (await api.stats())["producers"]
    assert told["pub_counts"] == [{"topic": "a", "count": 2}, {"topic": "b", "count": 2}]
    assert list(told)[-6:-4] == ["pub_counts", "tls"]
    assert (told["state"], told["ready_count"], told["message_count"]) == (0, 0, 0)
    (told,) = (await api.stats("&topic=b"))["producers"]
    assert told["pub_counts"] == [{"topic": "b", "count": 2}]
    assert (await api.stats("&topic=none"))["producers"] is None


async def test_a_consumer_tells_of_the_topic_asked_for_what_it_published(api: Api) -> None:
    client = await api.client()
    await client.sub("a", "ch")
    await client.pub("b", b"x")

    async def told(query: str) -> tuple[object, bytes]:
        (told,) = (await api.stats(query))["topics"][0]["channels"][0]["clients"]
        text = (await api.get(f"/stats?{query}")).body
        return told.get("pub_counts"), text.partition(b"Producers:")[0]

    counts, text = await told("&topic=a")
    assert counts is None
    assert b"] state: 3 inflt: 0" in text
    counts, text = await told("")
    assert counts == [{"topic": "b", "count": 1}]
    assert b"] msgs: 1        topics: b=1" in text


async def test_bad_health_is_told(api: Api) -> None:
    api.broker.unhealthy("disk on fire")
    assert (await api.stats())["health"] == "NOK - disk on fire"
    assert b"\nHealth: NOK - disk on fire\n" in (await api.get("/stats")).body


async def test_the_text_of_an_empty_node(api: Api) -> None:
    answer = await api.get("/stats")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert re.fullmatch(
        r"nsqd v1\.3\.0 \(built w/nsquark-[^)]+\)\n"
        r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\n"
        r"uptime [\d.]+[µm]?s\n"
        r"\nHealth: OK\n"
        r"\nMemory:\n(   [a-z0-9_ ]{25}\t\d+\n){9}"
        r"\nTopics: None\n"
        r"\nProducers: None\n",
        answer.body.decode(),
    )


async def test_the_text_of_topics_channels_and_clients(api: Api) -> None:
    for name in ("a", "a-name-longer-than-fifteen"):
        await api.done(f"/mpub?topic={name}", b"x\ny")
    consumer, producer = await api.client(), await api.client()
    await consumer.ask(identify(hostname="box", user_agent="kit/3"))
    await consumer.sub("a", "ch", rdy=1)
    await consumer.message()
    await producer.pub("a", b"x")
    await api.done("/topic/pause?topic=a")
    await api.done("/channel/pause?topic=a&channel=ch")
    body = (await api.get("/stats?include_mem=false")).body.decode()
    ports = [client.writer.get_extra_info("sockname")[1] for client in (consumer, producer)]
    body = re.sub(r"connected: \d+s", "connected: 0s", body[body.index("\nTopics") :])
    assert body == (
        "\nTopics:\n"
        "*P [a              ] depth: 0     be-depth: 0     msgs: 3        e2e%: \n"
        "   *P [ch                       ] depth: 2     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        "timeout: 0     msgs: 3        e2e%: \n"
        f"        [V2 {f'box:{ports[0]} kit/3':<21}] state: 3 inflt: 1    rdy: 1    fin: 0        "
        "re-q: 0        msgs: 1        connected: 0s\n"
        "\n   [a-name-longer-than-fifteen] depth: 2     be-depth: 0     msgs: 2        e2e%: \n"
        "\nProducers:\n"
        f"   [V2 {f'127.0.0.1:{ports[1]} ':<21}] msgs: 1        topics: a=1 connected: 0s\n"
    )


async def test_a_large_node_is_told_in_small_pieces(api: Api) -> None:
    for number in range(30):
        topic = api.broker.topic(f"t{number:02}")
        for channel in range(10):
            topic.channel(f"c{channel}")
    pieces = list(stats.json_pieces(api.broker, stats.Wanted()))
    assert max(map(len, pieces)) < 1000
    told = json.loads("".join(pieces))
    assert len(told["topics"]) == 30
    assert await api.stats("&include_mem=false") == {
        key: value for key, value in told.items() if key != "memory"
    }
