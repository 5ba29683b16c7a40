"""`/api` over real daemons: what it tells, what it does, and what it says when some of them are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Nsqd, Nsqlookupd, identify, until
from tests.nsqadmin.served import Admin, Cluster, free_address, serving

PAUSE = {"action": "pause"}


async def stats(nsqd: Any, topic: str = "orders") -> dict[str, Any]:
    _, answer = await nsqd.http("GET", f"/stats?format=json&topic={topic}")
    topics = json.loads(answer)["topics"]
    return topics[0] if topics else {}


# ---- reads


async def test_topics_are_the_union_of_what_nsqlookupds_know(admin: Admin) -> None:
    assert await admin.json("/api/topics") == {"topics": ["orders", "solo"], "message": ""}
    assert await admin.json("/api/topics?inactive=1") == {"topics": ["orders", "solo"], "message": ""}


async def test_answers_have_nsqs_headers(admin: Admin) -> None:
    answer = await admin.get("/api/topics")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


async def test_inactive_topics_come_with_their_channels(admin: Admin, daemons: Cluster) -> None:
    assert await admin.json("/api/topics?inactive=true") == {"topics": {}, "message": ""}
    await daemons.lookupds[0].post("/topic/create?topic=newt")
    await daemons.lookupds[1].post("/channel/create?topic=newt2&channel=newc")
    assert await admin.json("/api/topics?inactive=true") == {
        "topics": {"newt": [], "newt2": ["newc"]},
        "message": "",
    }


async def test_a_topic_is_merged_over_its_nodes_as_they_tell_it(admin: Admin, daemons: Cluster) -> None:
    told = await admin.json("/api/topics/orders")
    assert told["message"] == ""
    assert (told["node"], told["hostname"], told["topic_name"], told["message_count"]) == (
        "*",
        "",
        "orders",
        7,
    )
    by_node = {each["node"]: each for each in told["nodes"]}
    assert sorted(by_node) == sorted(nsqd.http_address for nsqd in daemons.nsqds[:2])
    for nsqd in daemons.nsqds[:2]:
        record, said = by_node[nsqd.http_address], await stats(nsqd)
        for key in ("depth", "backend_depth", "message_count", "paused"):
            assert record[key] == said[key]
        assert record["channels"][0]["depth"] == said["channels"][0]["depth"]
    [channel] = told["channels"]
    assert (channel["depth"], channel["message_count"], len(channel["nodes"])) == (7, 7, 2)


async def test_a_channel_lists_its_clients_with_their_nodes(admin: Admin, daemons: Cluster) -> None:
    nsqd = daemons.nsqds[1]
    async with await nsqd.connect() as client:
        client.send(identify(client_id="<script>", hostname="wörker\u2028", user_agent="</style>&"))
        await client.answer()
        await client.sub("orders", "archive", rdy=2)
        first = await client.message()
        told = await admin.json("/api/topics/orders/archive")
        assert (told["client_count"], told["in_flight_count"], told["depth"]) == (1, 2, 5)
        [seen] = told["clients"]
        assert seen["node"] == nsqd.http_address
        assert (seen["client_id"], seen["hostname"], seen["user_agent"]) == (
            "<script>",
            "wörker\u2028",
            "</style>&",
        )
        assert seen["connected"] % 1_000_000_000 == 0
        assert "state" not in seen
        client.fin(first)
        node = await admin.json(f"/api/nodes/{nsqd.http_address}")
        assert (node["node"], node["total_messages"], node["total_clients"]) == (nsqd.http_address, 4, 1)
        assert node["topics"][0]["channels"][0]["clients"][0]["client_id"] == "<script>"


async def test_half_a_surrogate_pair_from_a_client_is_still_json(admin: Admin, daemons: Cluster) -> None:
    async with await daemons.nsqds[0].connect() as client:
        client.send(identify(client_id="\ud800", hostname="h"))
        await client.answer()
        await client.sub("orders", "archive")
        assert len((await admin.json("/api/topics/orders/archive"))["clients"]) == 1


async def test_an_unknown_channel_of_a_known_topic_is_an_empty_answer(admin: Admin) -> None:
    assert await admin.json("/api/topics/orders/nope") == {"message": ""}


async def test_an_unknown_topic_is_an_upstream_error(admin: Admin) -> None:
    answer = await admin.get("/api/topics/nope")
    assert answer.status == 502
    assert answer.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: ")
    assert "TOPIC_NOT_FOUND" in answer.json["message"]


async def test_a_topic_that_one_nsqlookupd_does_not_know_is_no_reason_to_warn(admin: Admin) -> None:
    told = await admin.json("/api/topics/solo")
    assert (told["message"], len(told["nodes"])) == ("", 1)


async def test_a_topic_just_created_opens_without_nodes(admin: Admin) -> None:
    await admin.done("POST", "/api/topics", {"topic": "new"})
    told = await admin.json("/api/topics/new")
    assert (told["topic_name"], told["nodes"], told["channels"]) == ("new", [], [])


async def test_nodes_tell_where_they_were_seen(admin: Admin, daemons: Cluster) -> None:
    told = await admin.json("/api/nodes")
    by_port = {node["http_port"]: node for node in told["nodes"]}
    sightings = [len(by_port[nsqd.http_port]["remote_addresses"]) for nsqd in daemons.nsqds]
    assert (sightings, told["message"]) == ([2, 2, 1], "")
    assert by_port[daemons.nsqds[2].http_port]["topics"] == [{"topic": "solo", "tombstoned": False}]
    assert by_port[daemons.nsqds[0].http_port]["remote_addresses"][0].startswith(
        f"{daemons.lookupds[0].http_address}/127.0.0.1:"
    )


async def test_an_unknown_node_is_not_found(admin: Admin) -> None:
    answer = await admin.get(f"/api/nodes/{free_address()}")
    assert (answer.status, answer.json) == (404, {"message": "NODE_NOT_FOUND"})


async def test_the_counter_has_an_entry_per_channel_and_node(admin: Admin, daemons: Cluster) -> None:
    told = await admin.json("/api/counter")
    first = daemons.nsqds[0].http_address
    assert len(told["stats"]) == 2
    assert told["stats"][f"orders:archive:{first}"] == {
        "node": first,
        "topic_name": "orders",
        "channel_name": "archive",
        "message_count": 3,
    }


async def test_a_query_that_is_none_is_refused(admin: Admin) -> None:
    assert (await admin.get("/api/topics?inactive=%zz")).status == 400


# ---- some or all are gone


async def test_one_dead_nsqlookupd_costs_a_warning_and_both_the_answer(
    admin: Admin, daemons: Cluster
) -> None:
    daemons.lookupds[1].kill()
    told = await admin.json("/api/topics")
    assert told["topics"] == ["orders", "solo"]
    assert told["message"].startswith(f"WARNING: {daemons.lookupds[1].http_address}: ")
    daemons.lookupds[0].kill()
    for path in (
        "/api/topics",
        "/api/topics?inactive=true",
        "/api/nodes",
        "/api/topics/orders",
        "/api/counter",
    ):
        answer = await admin.get(path)
        assert answer.status == 502
        assert answer.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: ")


async def test_one_dead_nsqd_costs_a_warning_that_names_it(admin: Admin, daemons: Cluster) -> None:
    dead = daemons.nsqds[0]
    dead.process.send_signal(19)  # SIGSTOP: it is registered still, and takes connections, and says nothing
    try:
        async with serving(*daemons.flags, "--http-client-request-timeout=500ms") as hasty:
            for path in ("/api/topics/orders", "/api/topics/orders/archive", "/api/counter"):
                told = await hasty.json(path)
                assert told["message"].startswith(f"WARNING: {dead.http_address}: ")
            answer = await hasty.get(f"/api/nodes/{dead.http_address}")
            assert answer.status == 502
            assert answer.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: ")
            answer = await hasty.ask("POST", "/api/topics/orders", PAUSE)
            assert answer.status == 200
            assert answer.json["message"].startswith(f"WARNING: {dead.http_address}: ")
            assert (await stats(daemons.nsqds[1]))["paused"]
    finally:
        dead.process.send_signal(18)


async def test_nodes_that_hang_are_waited_for_at_once_and_not_in_turn(daemons: Cluster) -> None:
    await daemons.fill()
    for nsqd in daemons.nsqds:
        nsqd.process.send_signal(19)
    try:
        async with serving(*daemons.flags, "--http-client-request-timeout=3s") as hasty:
            began = asyncio.get_running_loop().time()
            assert (await hasty.get("/api/counter")).status == 502
            await hasty.ask("POST", "/api/topics/orders", PAUSE)
            assert (
                asyncio.get_running_loop().time() - began < 12
            )  # in turn it would be five times three seconds
    finally:
        for nsqd in daemons.nsqds:
            nsqd.process.send_signal(18)


# ---- actions


async def test_pause_unpause_and_empty_reach_every_node(admin: Admin, daemons: Cluster) -> None:
    nsqds = daemons.nsqds[:2]
    await admin.done("POST", "/api/topics/orders", PAUSE)
    assert [(await stats(nsqd))["paused"] for nsqd in nsqds] == [True, True]
    assert (await admin.json("/api/topics/orders"))["paused"]
    await admin.done("POST", "/api/topics/orders", {"action": "unpause"})
    assert [(await stats(nsqd))["paused"] for nsqd in nsqds] == [False, False]
    await admin.done("POST", "/api/topics/orders/archive", PAUSE)
    assert [(await stats(nsqd))["channels"][0]["paused"] for nsqd in nsqds] == [True, True]
    await admin.done("POST", "/api/topics/orders/archive", {"action": "empty"})
    assert [(await stats(nsqd))["channels"][0]["depth"] for nsqd in nsqds] == [0, 0]
    await admin.done("POST", "/api/topics/orders", {"action": "empty"})


async def test_a_node_that_fails_is_named_and_the_others_act(admin: Admin, daemons: Cluster) -> None:
    await daemons.nsqds[0].post("/channel/delete?topic=orders&channel=archive")
    answer = await admin.ask("POST", "/api/topics/orders/archive", PAUSE)
    assert answer.status == 200
    assert answer.json["message"] == (
        f"WARNING: {daemons.nsqds[0].http_address}: got response 404 Not Found "
        '"{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"'
    )
    assert (await stats(daemons.nsqds[1]))["channels"][0]["paused"]


async def test_a_channel_is_created_on_every_node_of_the_topic(admin: Admin, daemons: Cluster) -> None:
    await admin.done("POST", "/api/topics", {"topic": "orders", "channel": "new"})
    for nsqd in daemons.nsqds[:2]:
        assert "new" in [each["channel_name"] for each in (await stats(nsqd))["channels"]]
    for lookupd in daemons.lookupds:
        assert "new" in (await lookupd.get("/channels?topic=orders"))["channels"]


async def test_deleting_reaches_nsqlookupds_and_nsqds(admin: Admin, daemons: Cluster) -> None:
    await admin.done("DELETE", "/api/topics/orders/archive")
    assert [(await stats(nsqd))["channels"] for nsqd in daemons.nsqds[:2]] == [[], []]
    await admin.done("DELETE", "/api/topics/orders")
    assert [await stats(nsqd) for nsqd in daemons.nsqds[:2]] == [{}, {}]
    await until(lambda: gone(admin))


async def gone(admin: Admin) -> bool:
    return "orders" not in (await admin.json("/api/topics"))["topics"]


async def test_an_ephemeral_name_is_percent_encoded(admin: Admin, daemons: Cluster) -> None:
    await daemons.nsqds[0].post("/pub?topic=e%23ephemeral", b"x")
    await daemons.registered("e%23ephemeral", 1)
    assert (await admin.json("/api/topics/e%23ephemeral"))["topic_name"] == "e#ephemeral"
    await admin.done("DELETE", "/api/topics/e%23ephemeral")
    assert await stats(daemons.nsqds[0], "e%23ephemeral") == {}


async def test_a_tombstone_takes_the_topic_off_one_node(admin: Admin, daemons: Cluster) -> None:
    node = daemons.nsqds[0].http_address
    await admin.done("DELETE", f"/api/nodes/{node}", {"topic": "orders"})
    assert await stats(daemons.nsqds[0]) == {}
    assert (await stats(daemons.nsqds[1]))["message_count"] == 4
    assert [each["node"] for each in (await admin.json("/api/topics/orders"))["nodes"]] == [
        daemons.nsqds[1].http_address
    ]


async def test_a_tombstone_shows_while_it_lasts(tmp_path: Path) -> None:
    """On an nsqd that has the topic still: nsqadmin would delete it there."""
    with (
        Nsqlookupd().start() as lasting,
        Nsqlookupd("--tombstone-lifetime=1ms").start() as brief,
        Nsqd(
            tmp_path,
            "--broadcast-address=127.0.0.1",
            *(f"--lookupd-tcp-address={each.tcp_address}" for each in (lasting, brief)),
        ).start() as nsqd,
    ):
        await nsqd.post("/topic/create?topic=orders")
        for lookupd, shown in ((lasting, True), (brief, False)):
            async with serving(f"--lookupd-http-address={lookupd.http_address}") as admin:

                async def tombstoned(admin: Admin = admin) -> list[bool]:
                    nodes = (await admin.json("/api/nodes"))["nodes"]
                    return [topic["tombstoned"] for node in nodes for topic in node["topics"]]

                async def is_shown(wanted: list[bool], told: Any = tombstoned) -> bool:
                    return bool(await told() == wanted)

                await until(lambda told=is_shown: told([False]))
                await lookupd.post(f"/topic/tombstone?topic=orders&node={nsqd.http_address}")
                await until(lambda told=is_shown, wanted=shown: told([wanted]))
                nodes = (await admin.json("/api/topics/orders"))["nodes"]
                assert [each["node"] for each in nodes] == ([] if shown else [nsqd.http_address])
                assert ("1 tombstoned" in (await admin.get("/nodes")).body.decode()) is shown


async def test_a_tombstone_of_a_topic_the_node_does_not_have_is_a_warning(
    admin: Admin, daemons: Cluster
) -> None:
    answer = await admin.ask("DELETE", f"/api/nodes/{daemons.nsqds[0].http_address}", {"topic": "other"})
    assert answer.status == 200
    assert "TOPIC_NOT_FOUND" in answer.json["message"]


async def test_a_tombstone_goes_to_no_host_outside_the_cluster(admin: Admin) -> None:
    answer = await admin.ask("DELETE", f"/api/nodes/{free_address()}", {"topic": "orders"})
    assert (answer.status, answer.json) == (404, {"message": "NODE_NOT_FOUND"})


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/api/topics", b"", "EOF"),
        ("POST", "/api/topics", {}, "INVALID_TOPIC"),
        ("POST", "/api/topics", b"null", "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a b"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a" * 65}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a\n"}, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a", "channel": "?"}, "INVALID_CHANNEL"),
        ("POST", "/api/topics", {"Topic": "a", "Channel": "?"}, "INVALID_CHANNEL"),
        ("POST", "/api/topics", {"topic": 3}, "topic is no string"),
        ("POST", "/api/topics", [], "the body is no JSON object"),
        ("POST", "/api/topics/orders", {}, "INVALID_ACTION"),
        ("POST", "/api/topics/orders", {"action": "delete"}, "INVALID_ACTION"),
        ("POST", "/api/topics/orders/archive", {"action": "../topic/delete"}, "INVALID_ACTION"),
        ("DELETE", "/api/nodes/a:1", b"", "INVALID_BODY"),
        ("DELETE", "/api/nodes/a:1", {"topic": "?"}, "INVALID_TOPIC"),
    ],
)
async def test_what_cannot_be_done_is_refused(method: str, path: str, body: object, message: str) -> None:
    async with serving(f"--nsqd-http-address={free_address()}") as admin:
        answer = await admin.ask(method, path, body)
        assert (answer.status, answer.json) == (400, {"message": message})


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b"\xff\xfe"])
async def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    async with serving(f"--nsqd-http-address={free_address()}") as admin:
        assert (await admin.ask("POST", "/api/topics", body)).status == 400


async def test_a_body_without_end_is_refused() -> None:
    async with serving(f"--nsqd-http-address={free_address()}") as admin:
        answer = await admin.ask("POST", "/api/topics", b" " * (2 << 20))
        assert (answer.status, answer.json) == (413, {"message": "INVALID_BODY"})


async def test_only_the_first_json_value_is_read(admin: Admin) -> None:
    await admin.done("POST", "/api/topics", b' {"topic":"new"} and what follows')


# ---- permissions


WRITES = [
    ("POST", "/api/topics", {"topic": "new"}),
    ("POST", "/api/topics/orders", PAUSE),
    ("POST", "/api/topics/orders/archive", PAUSE),
    ("DELETE", "/api/topics/orders/archive", b""),
    ("DELETE", "/api/topics/orders", b""),
]


async def test_only_admins_may_change_things(daemons: Cluster) -> None:
    await daemons.fill()
    async with serving(
        *daemons.flags, "--admin-user=ann", "--admin-user=bob", "--acl-http-header=X-User"
    ) as admin:
        node = ("DELETE", f"/api/nodes/{daemons.nsqds[2].http_address}", {"topic": "solo"})
        for method, path, body in [*WRITES, node]:
            for headers in ({}, {"X_User": "Ann"}, {"X_User": ""}, {"X_Forwarded_User": "ann"}):
                answer = await admin.ask(method, path, body, **headers)
                assert (answer.status, answer.json) == (403, {"message": "FORBIDDEN"}), (path, headers)
        assert (await admin.ask("POST", "/api/topics", b"no json")).status == 403
        assert (await admin.get("/api/topics")).status == 200
        for method, path, body in [node, *WRITES]:
            assert (await admin.ask(method, path, body, x_user="ann")).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[bad"}, 403),
        ({"Origin": "https://admin.example", "X_Forwarded_Host": "admin.example"}, 200),
        ({"Origin": "http://evil.example", "Sec_Fetch_Site": "same-origin"}, 200),
    ],
)
async def test_a_page_of_another_site_can_do_nothing(headers: dict[str, str], status: int) -> None:
    async with serving(f"--nsqd-http-address={free_address()}") as admin:
        assert (await admin.ask("POST", "/api/topics", {"topic": "new"}, **headers)).status == status


async def test_a_page_of_nsqadmin_s_own_may_act() -> None:
    async with serving(f"--nsqd-http-address={free_address()}") as admin:
        answer = await admin.ask("POST", "/api/topics", {"topic": "new"}, Origin=f"http://{admin.address}")
        assert answer.status == 200


# ---- without nsqlookupds


async def test_configured_nsqds_are_all_there_is(daemons: Cluster) -> None:
    await daemons.fill()
    async with serving(*daemons.nsqd_flags) as admin:
        assert await admin.json("/api/topics") == {"topics": ["orders", "solo"], "message": ""}
        assert await admin.json("/api/topics?inactive=true") == {"topics": {}, "message": ""}
        nodes = (await admin.json("/api/nodes"))["nodes"]
        assert [node["http_port"] for node in nodes] == [nsqd.http_port for nsqd in daemons.nsqds]
        assert {
            (node["remote_addresses"], node["remote_address"], node["out_of_date"]) for node in nodes
        } == {(None, "", False)}
        assert (await admin.json("/api/topics/orders"))["message_count"] == 7
        assert len((await admin.json("/api/counter"))["stats"]) == 2
        await admin.done("POST", "/api/topics/orders", PAUSE)
        assert (await stats(daemons.nsqds[0]))["paused"]
        await admin.done("DELETE", f"/api/nodes/{daemons.nsqds[1].http_address}", {"topic": "orders"})
        assert await stats(daemons.nsqds[1]) == {}


async def test_without_nsqlookupds_nothing_is_created_and_the_unknown_is_left_alone(daemons: Cluster) -> None:
    async with serving(*daemons.nsqd_flags) as admin:
        await admin.done("POST", "/api/topics", {"topic": "new"})
        assert (await admin.json("/api/topics"))["topics"] == []
        assert (await admin.ask("POST", "/api/topics", {"topic": "new", "channel": "c"})).status == 502
        await admin.done("POST", "/api/topics/nope", PAUSE)
        await admin.done("DELETE", "/api/topics/nope")
        for path in ("/api/topics/nope", "/api/topics/nope/c"):
            answer = await admin.get(path)
            assert (answer.status, answer.json) == (
                502,
                {"message": "UPSTREAM_ERROR: failed to query any nsqd: "},
            )
