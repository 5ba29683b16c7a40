"""Topics and channels of nodes, and merged over them."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.nsqadmin.cluster.stats import TopicStats, merge_channels, merge_topics, parse_topics


def client(hostname: str) -> dict[str, Any]:
    return {
        "client_id": "worker1",
        "hostname": hostname,
        "version": "V2",
        "remote_address": "10.0.0.31:47888",
        "state": 3,
        "ready_count": 2,
        "in_flight_count": 2,
        "message_count": 6,
        "finish_count": 4,
        "requeue_count": 0,
        "connect_ts": 1794772429,
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "user_agent": "demo/1.0",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


def channel(
    depth: int, backend_depth: int, clients: list[dict[str, Any]] | None, **more: Any
) -> dict[str, Any]:
    return {
        "channel_name": "archive",
        "depth": depth,
        "backend_depth": backend_depth,
        "in_flight_count": 2,
        "deferred_count": 1,
        "message_count": 13,
        "requeue_count": 4,
        "timeout_count": 5,
        "client_count": 1,
        "clients": clients,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        **more,
    }


def on_node(node: str, hostname: str, *channels: dict[str, Any], **more: Any) -> list[TopicStats]:
    told = {
        "topic_name": "orders",
        "channels": list(channels),
        "depth": 3,
        "backend_depth": 1,
        "message_count": 20,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        **more,
    }
    return parse_topics({"topics": [told], "version": "1.3.0"}, node, hostname, 1794772430.7)


def two_nodes() -> list[TopicStats]:
    return [
        *on_node("nsqd2.example:4151", "nsqd2", channel(0, 0, [client("a")]), paused=True),
        *on_node("nsqd1.example:4151", "nsqd1", channel(6, 1, [client("worker1.example.com")])),
    ]


def test_a_topic_is_summed_and_its_nodes_are_sorted() -> None:
    told = merge_topics("orders", two_nodes()).to_json()
    assert {key: told[key] for key in told.keys() - {"nodes", "channels", "e2e_processing_latency"}} == {
        "node": "*",
        "hostname": "",
        "topic_name": "orders",
        "depth": 6,
        "memory_depth": 4,
        "backend_depth": 2,
        "message_count": 40,
        "paused": True,
    }
    assert [(each["node"], each["hostname"], each["nodes"]) for each in told["nodes"]] == [
        ("nsqd1.example:4151", "nsqd1", None),
        ("nsqd2.example:4151", "nsqd2", None),
    ]


def test_merged_channels_list_every_node_and_leave_the_nodes_records_alone() -> None:
    told = merge_topics("orders", two_nodes()).to_json()
    [merged] = told["channels"]
    assert (merged["node"], merged["hostname"], merged["depth"], merged["memory_depth"]) == ("*", "", 6, 5)
    assert [each["hostname"] for each in merged["nodes"]] == ["nsqd1", "nsqd2"]
    assert [each["channels"][0]["depth"] for each in told["nodes"]] == [6, 0]


def test_a_channel_has_the_keys_and_the_order_of_the_recording() -> None:
    channels = [topic.channels[0] for topic in two_nodes()]
    told = merge_channels("orders", "archive", channels).to_json()
    assert list(told) == [
        *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
        *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"),
        *("client_count", "nodes", "clients", "paused", "e2e_processing_latency"),
    ]
    assert [each["hostname"] for each in told["clients"]] == ["a", "worker1.example.com"]
    assert [len(each["clients"]) for each in told["nodes"]] == [1, 1]
    assert told["clients"][1] == {
        "node": "nsqd1.example:4151",
        "remote_address": "10.0.0.31:47888",
        "version": "V2",
        "client_id": "worker1",
        "hostname": "worker1.example.com",
        "user_agent": "demo/1.0",
        "connect_ts": 1794772429,
        "connected": 1000000000,
        "in_flight_count": 2,
        "ready_count": 2,
        "finish_count": 4,
        "requeue_count": 0,
        "message_count": 6,
        "sample_rate": 0,
        "deflate": False,
        "snappy": False,
        "authed": False,
        "auth_identity": "",
        "auth_identity_url": "",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
    sums = (
        "in_flight_count",
        "deferred_count",
        "requeue_count",
        "timeout_count",
        "message_count",
        "client_count",
    )
    assert [told[key] for key in sums] == [4, 2, 8, 10, 26, 2]


def test_a_topic_without_channels_is_that_of_the_recording() -> None:
    told = merge_topics(
        "solo", on_node("nsqd3.example:4151", "nsqd3", depth=0, backend_depth=0, topic_name="solo")
    )
    nothing = {"count": 0, "percentiles": None, "topic": "", "channel": "", "host": ""}
    assert told.to_json() == {
        "node": "*",
        "hostname": "",
        "topic_name": "solo",
        "depth": 0,
        "memory_depth": 0,
        "backend_depth": 0,
        "message_count": 20,
        "nodes": [
            {
                "node": "nsqd3.example:4151",
                "hostname": "nsqd3",
                "topic_name": "solo",
                "depth": 0,
                "memory_depth": 0,
                "backend_depth": 0,
                "message_count": 20,
                "nodes": None,
                "channels": [],
                "paused": False,
                "e2e_processing_latency": nothing,
            }
        ],
        "channels": [],
        "paused": False,
        "e2e_processing_latency": {**nothing, "topic": "solo", "host": "*"},
    }


def test_only_nsquark_s_nsqd_counts_dead_letters() -> None:
    [go] = on_node("a:1", "a", channel(0, 0, None))
    [ours] = on_node("b:1", "b", channel(0, 0, None, dead_letter_count=3, max_attempts=5))
    assert (go.channels[0].dead_letter_count, ours.channels[0].dead_letter_count) == (None, 3)
    assert merge_channels("orders", "archive", [go.channels[0]]).dead_letter_count is None
    assert merge_channels("orders", "archive", [go.channels[0], ours.channels[0]]).dead_letter_count == 3


def test_what_is_held_back_is_added_up_and_a_channel_is_read_if_any_node_s_is() -> None:
    [go] = on_node("a:1", "a", channel(0, 0, None))
    told = {"held_messages": 3, "held_bytes": 500, "held_segments": 1, "hold_timeout": 0, "holds_log": True}
    [idle] = on_node("b:1", "b", channel(0, 0, None, **told, idle_since=1794772000))
    [later] = on_node("c:1", "c", channel(0, 0, None, **{**told, "holds_log": False}, idle_since=1794772100))
    [read] = on_node("d:1", "d", channel(0, 0, None, **told, idle_since=None))

    def merged(*topics: TopicStats) -> tuple[object, ...]:
        found = merge_channels("orders", "archive", [each.channels[0] for each in topics])
        return found.held_messages, found.held_bytes, found.idle_since, found.holds_log

    assert merged(go) == (None, None, None, True)
    assert merged(idle) == (3, 500, 1794772000, True)
    assert merged(idle, later) == (6, 1000, 1794772100, True)
    assert merged(later) == (3, 500, 1794772100, False)
    assert merged(idle, read) == (6, 1000, None, True)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"topics": None},
        {"topics": [None, 3, {}]},
        {"topics": [{"topic_name": None, "depth": "x", "channels": None}]},
        {"topics": [{"channels": [None, {"clients": [None, {"connect_ts": 1e400}], "depth": 1.5}]}]},
    ],
)
def test_odd_statistics_are_borne(odd: dict[str, Any]) -> None:
    merge_topics("t", parse_topics(odd, "a:1", "a", 0.0)).to_json()


def test_an_nsqd_that_counts_no_clients_lists_them() -> None:
    told = channel(0, 0, [client("a"), client("b")])
    del told["client_count"]
    [topic] = on_node("a:1", "a", told)
    assert topic.channels[0].client_count == 2
