"""What pages ask of the cluster beyond `/api`: the overview, actions on one node, peeks and seeks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsquark.http.client.protocol import BadStatus
from nsquark.nsqadmin.cluster import Actions, Cluster, Inspection, Node, NodeNotFound, explain
from nsquark.nsqadmin.cluster.document import Document
from nsquark.nsqadmin.upstream import Upstream, UpstreamError
from tests.daemon import Nsqd, identify
from tests.http.web import Got, Web, answer
from tests.nsqadmin import served
from tests.nsqadmin.served import free_address


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(connect_timeout=1.0, timeout=5.0)
    yield upstream
    upstream.close()


@pytest.fixture
async def cluster(daemons: served.Cluster, upstream: Upstream) -> Cluster:
    await daemons.fill()
    return Cluster(upstream, [lookupd.http_address for lookupd in daemons.lookupds])


async def channel_of(nsqd: Nsqd) -> dict[str, Any]:
    _, answer = await nsqd.http("GET", "/stats?format=json&topic=orders&channel=archive")
    channel: dict[str, Any] = json.loads(answer)["topics"][0]["channels"][0]
    return channel


async def test_the_overview_adds_up_what_the_nodes_tell(cluster: Cluster, daemons: served.Cluster) -> None:
    async with await daemons.nsqds[0].connect() as client:
        client.send(identify(client_id="worker", hostname="h"))
        await client.answer()
        await client.sub("orders", "archive", rdy=1)
        await client.message()
        found = await cluster.overview(clients=True)
    overview = found.value
    assert found.failures == []
    assert list(overview.topics) == ["orders", "solo"]
    orders = overview.topics["orders"]
    assert (orders.message_count, orders.node_count, orders.paused) == (7, 2, False)
    archive = orders.channels["archive"]
    assert (archive.depth, archive.in_flight_count, archive.message_count) == (6, 1, 7)
    assert (archive.client_count, archive.node_count, archive.latency) == (1, 2, None)
    totals = {each.node.http_port: each for each in overview.nodes}
    first = totals[daemons.nsqds[0].http_port]
    assert (first.topic_count, first.channel_count, first.depth, first.client_count) == (1, 1, 2, 1)
    assert (first.health, first.failure) == ("OK", None)
    assert first.nsquark_version
    [seen] = overview.clients
    assert (seen.topic_name, seen.channel_name, seen.client.client_id) == ("orders", "archive", "worker")
    assert seen.client.node == daemons.nsqds[0].http_address


async def test_a_node_that_is_gone_is_in_the_overview_with_its_failure(
    upstream: Upstream, daemons: served.Cluster
) -> None:
    await daemons.fill()
    dead = free_address()
    found = await Cluster(upstream, nsqds=[daemons.nsqds[0].http_address, dead]).overview()
    assert [(each.node.address, each.failure is None) for each in found.value.nodes] == [
        (daemons.nsqds[0].http_address, True),
        (dead, False),
    ]
    assert found.message.startswith(f"WARNING: {dead}: ")


async def test_statistics_are_read_node_by_node(cluster: Cluster, daemons: served.Cluster) -> None:
    read: dict[str, Document] = {}

    def keep(node: Node, stats: Document) -> None:
        read[node.address] = stats

    found = await cluster.read_stats(keep)
    assert len(found.value) == 3
    assert set(read) == {nsqd.http_address for nsqd in daemons.nsqds}
    assert read[daemons.nsqds[2].http_address]["topics"][0]["topic_name"] == "solo"


async def test_one_node_alone_can_be_paused(cluster: Cluster, daemons: served.Cluster) -> None:
    actions = Actions(cluster)
    node = daemons.nsqds[1].http_address
    outcome = await actions.act_on_channel("orders", "archive", "pause", node)
    assert [target.address for target in outcome.done] == [node]
    assert [(await channel_of(nsqd))["paused"] for nsqd in daemons.nsqds[:2]] == [False, True]
    with pytest.raises(NodeNotFound):
        await actions.act_on_topic("orders", "empty", daemons.nsqds[2].http_address)
    with pytest.raises(NodeNotFound):
        await actions.delete_channel("orders", "archive", free_address())


async def test_a_topic_can_be_created_on_chosen_nodes(cluster: Cluster, daemons: served.Cluster) -> None:
    outcome = await Actions(cluster).create_topic("new", on=[daemons.nsqds[0].http_address])
    assert [target.kind for target in outcome.done] == ["nsqlookupd", "nsqlookupd", "nsqd"]
    await daemons.registered("new", 1)


async def test_messages_are_published_peeked_at_and_delivered_again(
    cluster: Cluster, upstream: Upstream, daemons: served.Cluster
) -> None:
    inspection = Inspection(upstream)
    node = (await cluster.find_node(daemons.nsqds[0].http_address)).value
    await inspection.publish(node, "orders", b"\xff")
    await inspection.publish(node, "orders", b"later", defer_ms=60_000)
    told = await inspection.peek_topic(node, "orders", start=3, limit=1)
    assert [message["body_base64"] for message in told["messages"]] == ["/w=="]
    told = await inspection.peek_channel(node, "orders", "archive", "deferred")
    assert [message["body"] for message in told["messages"]] == ["later"]
    told = await inspection.log_range(node, "orders", channel="archive", timestamp_ms=0)
    assert (told["first"], told["next"], told["position"]) == (0, 5, 0)
    await inspection.seek(node, "orders", "archive", "latest")
    assert (await channel_of(daemons.nsqds[0]))["depth"] == 0
    await inspection.set_max_attempts(node, "orders", "archive", "3")
    assert (await channel_of(daemons.nsqds[0]))["max_attempts"] == 3
    assert (await inspection.redeliver(node, "orders", "archive"))["redelivered"] == 0


async def test_go_s_nsqd_is_said_not_to_offer_it(cluster: Cluster, daemons: served.Cluster) -> None:
    node = (await cluster.find_node(daemons.nsqds[0].http_address)).value
    unknown = BadStatus("http://a/topic/peek", 404, b'{"message":"NOT_FOUND"}')
    assert explain(node, unknown) == f"{node.address} runs NSQ's own nsqd, which does not offer this"
    missing = BadStatus("http://a/topic/peek", 404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert "TOPIC_NOT_FOUND" in explain(node, missing)


# ---- where a topic was, and where it is


class Played:
    """An nsqlookupd and nsqds that say what a test tells them."""

    def __init__(self, lookupd: Web, nsqds: list[Web]) -> None:
        self.lookupd = lookupd
        self.nsqds = nsqds

    def place(self, *nsqds: Web) -> None:
        """Have the nsqlookupd name these."""
        producers = [
            {"broadcast_address": "127.0.0.1", "hostname": f"h{port_of(each)}", "http_port": port_of(each)}
            for each in nsqds
        ]
        body = json.dumps({"producers": producers, "channels": []}).encode()
        self.lookupd.answers["/lookup"] = answer(200, body=body)

    def count(self, nsqd: Web, depth: int) -> None:
        topic = {"topic_name": "orders", "depth": depth, "channels": [{"channel_name": "c", "depth": depth}]}
        nsqd.answers["/stats"] = answer(200, body=json.dumps({"topics": [topic]}).encode())


def port_of(web: Web) -> int:
    return int(web.url.rpartition(":")[2])


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    async with Web() as lookupd, Web() as first, Web() as second:
        played = Played(lookupd, [first, second])
        for nsqd in played.nsqds:
            played.count(nsqd, 1)
        yield played


async def test_a_topic_is_looked_up_each_time_and_only_who_has_it_counts(
    played: Played, upstream: Upstream
) -> None:
    first, second = played.nsqds
    cluster = Cluster(upstream, [played.lookupd.url.removeprefix("http://")])
    for nsqds, depths in (
        ([first], [5]),
        ([first], [6]),  # asked along with the nsqlookupd, and told anew
        ([first, second], [7, 8]),
        ([second], [9]),  # the first has lost it meanwhile
        ([], []),
        ([first], [4]),
    ):
        played.place(*nsqds)
        for nsqd, depth in zip(nsqds, depths, strict=True):
            played.count(nsqd, depth)
        before = len(played.lookupd.got)
        topic = await cluster.topic("orders")
        channel = await cluster.channel("orders", "c")
        assert topic.value.depth == sum(depths)
        assert (channel.value.depth if channel.value else 0) == sum(depths)
        assert [len(each.value.nodes or ()) for each in (topic, channel) if each.value] == (
            [len(nsqds)] * 2 if nsqds else [0]
        )
        assert (topic.failures, channel.failures) == ([], [])
        assert len(played.lookupd.got) == before + 2


async def test_an_nsqd_that_lost_the_topic_and_hangs_is_not_waited_for(
    played: Played, upstream: Upstream
) -> None:
    first, second = played.nsqds
    cluster = Cluster(upstream, [played.lookupd.url.removeprefix("http://")])
    played.place(first, second)
    await cluster.topic("orders")
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_got: Got, _writer: asyncio.StreamWriter) -> None:
        asked.set()
        await never.wait()

    first.answers["/stats"] = hang
    played.place(second)
    async with asyncio.timeout(2.5):  # half of the time that a request has
        found = await cluster.topic("orders")
        await asked.wait()
    assert (found.value.depth, found.failures) == (1, [])


async def test_a_node_that_fails_is_named_also_where_it_was_asked_ahead(
    played: Played, upstream: Upstream
) -> None:
    first, second = played.nsqds
    cluster = Cluster(upstream, [played.lookupd.url.removeprefix("http://")])
    played.place(first, second)
    await cluster.topic("orders")
    first.answers["/stats"] = answer(500, body=b"oops")
    found = await cluster.topic("orders")
    assert found.value.depth == 1
    assert [(each.address, each.status) for each in found.failures] == [(f"127.0.0.1:{port_of(first)}", 500)]
    played.lookupd.answers["/lookup"] = answer(404, body=b'{"message":"TOPIC_NOT_FOUND"}')
    with pytest.raises(UpstreamError) as gone:
        await cluster.topic("orders")
    assert gone.value.not_found


async def test_where_topics_were_is_forgotten_in_the_end(
    played: Played, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsquark.nsqadmin.cluster.cluster.TOPICS_REMEMBERED", 2)
    cluster = Cluster(upstream, [played.lookupd.url.removeprefix("http://")])
    played.place(played.nsqds[0])
    for name in ("a", "b", "a", "c"):
        await cluster.topic(name)
    assert list(cluster._seen_with) == ["a", "c"]
