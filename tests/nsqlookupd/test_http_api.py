"""The HTTP API: what the conformance kit does not ask."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.nsqlookupd.served import Lookupd, running

NAMES = "topic=orders&channel=archive"


def shown(nsqd: str, address: str) -> dict[str, object]:
    return {
        "remote_address": address,
        "hostname": nsqd,
        "broadcast_address": f"{nsqd}.example",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }


async def test_a_look_into_the_process(lookupd: Lookupd) -> None:
    answer = await lookupd.ask("/debug/pprof/goroutine")
    assert answer.status == 200
    assert b"nsqlookupd" in answer.body


async def test_an_empty_directory_has_empty_lists(lookupd: Lookupd) -> None:
    for path, body in (
        ("/topics", b'{"topics":[]}'),
        ("/nodes", b'{"producers":[]}'),
        ("/channels?topic=x", b'{"channels":[]}'),
        ("/debug", b"{}"),
        ("/info", b'{"version":"1.3.0"}'),
    ):
        answer = await lookupd.ask(path)
        assert answer.body == body
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert answer.headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


async def test_lookup_tells_of_channels_and_producers(lookupd: Lookupd) -> None:
    one = await lookupd.producer("REGISTER orders b", "REGISTER orders a")
    two = await lookupd.producer("REGISTER orders", broadcast_address="nsqd2.example", hostname="nsqd2")
    assert await lookupd.get("/lookup?topic=orders") == {
        "channels": ["a", "b"],
        "producers": [shown("nsqd1", one.address), shown("nsqd2", two.address)],
    }


async def test_nodes_tells_of_topics_and_tombstones_in_parallel(lookupd: Lookupd) -> None:
    one = await lookupd.producer("REGISTER orders a", "REGISTER events")
    two = await lookupd.producer(broadcast_address="nsqd2.example", hostname="nsqd2")
    assert await lookupd.get("/nodes") == {
        "producers": [
            shown("nsqd1", one.address) | {"tombstones": [False, False], "topics": ["events", "orders"]},
            shown("nsqd2", two.address) | {"tombstones": [], "topics": []},
        ]
    }
    await lookupd.post("/topic/tombstone?topic=orders&node=nsqd1.example:4151")
    (node, _) = (await lookupd.get("/nodes"))["producers"]
    assert (node["topics"], node["tombstones"]) == (["events", "orders"], [False, True])
    await one.ok("UNREGISTER orders", "REGISTER orders", "REGISTER another")
    (node, _) = (await lookupd.get("/nodes"))["producers"]
    assert (node["topics"], node["tombstones"]) == (["another", "events", "orders"], [False] * 3)


async def test_many_topics_come_in_one_piece(lookupd: Lookupd) -> None:
    names = sorted(f"topic{number}" for number in range(2500))
    await lookupd.producer(*(f"REGISTER {name}" for name in names))
    assert await lookupd.get("/topics") == {"topics": names}
    (node,) = (await lookupd.get("/nodes"))["producers"]
    assert node["topics"] == names
    assert node["tombstones"] == [False] * 2500


@pytest.mark.parametrize("topic", ["*", "", "nope", "%2A", "bad%20name"])
async def test_a_name_that_is_none_is_simply_not_there(lookupd: Lookupd, topic: str) -> None:
    """NSQ takes `*` for every topic, and empties its directory when asked to delete it."""
    nsqd = await lookupd.producer("REGISTER orders archive")
    answer = await lookupd.ask(f"/lookup?topic={topic}")
    assert (answer.status, answer.body) == (404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert await lookupd.get(f"/channels?topic={topic}") == {"channels": []}
    await lookupd.post(f"/topic/tombstone?topic={topic}&node=nsqd1.example:4151")
    await lookupd.post(f"/topic/delete?topic={topic}")
    assert await lookupd.get("/lookup?topic=orders") == {
        "channels": ["archive"],
        "producers": [shown("nsqd1", nsqd.address)],
    }


async def test_a_deleted_topic_stays_away_until_it_is_registered_again(lookupd: Lookupd) -> None:
    nsqd = await lookupd.producer("REGISTER orders archive", "REGISTER events")
    await lookupd.post("/topic/delete?topic=orders")
    assert await lookupd.get("/topics") == {"topics": ["events"]}
    (node,) = (await lookupd.get("/nodes"))["producers"]
    assert node["topics"] == ["events"]
    await nsqd.ok("REGISTER orders archive")
    assert await lookupd.producers("orders") == ["nsqd1.example"]


async def test_a_deleted_channel_leaves_its_topic(lookupd: Lookupd) -> None:
    await lookupd.producer("REGISTER orders archive")
    await lookupd.post(f"/channel/delete?{NAMES}")
    assert await lookupd.producers("orders") == ["nsqd1.example"]
    answer = await lookupd.ask(f"/channel/delete?{NAMES}", "POST")
    assert (answer.status, answer.body) == (404, b'{"message":"CHANNEL_NOT_FOUND"}')


async def test_what_is_created_is_known_without_a_producer(lookupd: Lookupd) -> None:
    for _ in range(2):
        await lookupd.post(f"/channel/create?{NAMES}")
        await lookupd.post("/topic/create?topic=events")
    assert await lookupd.get("/topics") == {"topics": ["events", "orders"]}
    assert await lookupd.get("/lookup?topic=orders") == {"channels": ["archive"], "producers": []}


@pytest.mark.parametrize("node", ["::1:4151", "[::1]:4151"])
async def test_an_ipv6_node_is_tombstoned_however_it_is_spelt(lookupd: Lookupd, node: str) -> None:
    await lookupd.producer("REGISTER orders", broadcast_address="::1")
    await lookupd.post(f"/topic/tombstone?topic=orders&node={node}")
    assert await lookupd.producers("orders") == []


async def test_a_tombstone_ends_and_debug_still_knows_it() -> None:
    async with running(tombstone_lifetime=0.0) as lookupd:
        await lookupd.producer("REGISTER orders")
        await lookupd.post("/topic/tombstone?topic=orders&node=nsqd1.example:4151")
        assert await lookupd.producers("orders") == ["nsqd1.example"]
        assert (await lookupd.get("/debug"))["topic:orders:"][0]["tombstoned"] is True


async def test_debug_tells_everything(lookupd: Lookupd) -> None:
    before = time.time_ns()
    nsqd = await lookupd.producer("REGISTER orders archive")
    await lookupd.post("/topic/create?topic=empty")
    await lookupd.post("/topic/tombstone?topic=orders&node=nsqd1.example:4151")
    document = await lookupd.get("/debug")
    assert sorted(document) == ["channel:orders:archive", "client::", "topic:orders:"]
    common = {
        "broadcast_address": "nsqd1.example",
        "hostname": "nsqd1",
        "http_port": 4151,
        "id": nsqd.address,
        "tcp_port": 4150,
        "version": "1.3.0",
    }
    for key, (producer,) in document.items():
        assert producer.items() >= common.items()
        assert abs(producer["last_update"] - before) < 60e9
        assert producer["tombstoned"] is (key == "topic:orders:")
        if producer["tombstoned"]:
            assert abs(producer["tombstoned_at"] - before) < 60e9
        else:
            assert producer["tombstoned_at"] == -6795364578871345152


async def test_strings_of_peers_stay_strings(lookupd: Lookupd) -> None:
    await lookupd.producer("REGISTER orders", hostname='a"b<>\\\u2028\ud800', version="\x00")
    answer = await lookupd.ask("/lookup?topic=orders")
    (producer,) = json.loads(answer.body)["producers"]
    assert (producer["hostname"], producer["version"]) == ('a"b<>\\\u2028\ufffd', "\x00")
    assert b"<" not in answer.body


@pytest.mark.parametrize("path", ["/lookup?topic=%zz", "/channels?topic=a;b", "/lookup?topic=orders&%"])
async def test_a_query_that_does_not_parse(lookupd: Lookupd, path: str) -> None:
    answer = await lookupd.ask(path)
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_REQUEST"}')


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MISSING_ARG_TOPIC"),
        ("channel=c", "MISSING_ARG_TOPIC"),
        ("topic=!", "INVALID_ARG_TOPIC"),
        ("topic=", "INVALID_ARG_TOPIC"),
        ("topic=t", "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=c%0a", "INVALID_ARG_CHANNEL"),
    ],
)
@pytest.mark.parametrize("verb", ["create", "delete"])
async def test_what_is_wrong_is_said_in_nsqs_order(
    lookupd: Lookupd, verb: str, query: str, code: str
) -> None:
    answer = await lookupd.ask(f"/channel/{verb}?{query}", "POST")
    assert (answer.status, json.loads(answer.body)) == (400, {"message": code})


@pytest.mark.parametrize("path", ["/create_topic", "/delete_topic", "/tombstone_topic_producer", "/", "/put"])
async def test_the_old_paths_are_gone(lookupd: Lookupd, path: str) -> None:
    for method in ("GET", "POST"):
        assert (await lookupd.ask(f"{path}?topic=t", method)).status == 404


async def test_a_full_directory_says_so() -> None:
    async with running(max_registrations=3) as lookupd:
        await lookupd.producer("REGISTER orders")
        await lookupd.post("/topic/create?topic=first")
        await lookupd.post("/topic/create?topic=second")  # in place of the first
        assert await lookupd.get("/topics") == {"topics": ["orders", "second"]}
        answer: Any = await lookupd.ask("/channel/create?topic=third&channel=c", "POST")
        assert (answer.status, json.loads(answer.body)) == (503, {"message": "DIRECTORY_FULL"})
        assert await lookupd.producers("orders") == ["nsqd1.example"]
