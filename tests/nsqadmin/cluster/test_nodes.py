"""Nodes as nsqlookupds tell of them."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.nsqadmin.cluster.nodes import Node, merge_sightings, parse_info, parse_producer, version_key


def producer(**fields: Any) -> Node:
    told = {
        "remote_address": "10.0.0.11:36424",
        "hostname": "nsqd1",
        "broadcast_address": "nsqd1.example",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topics": ["orders"],
        "tombstones": [False],
    }
    return parse_producer({**told, **fields})


def test_the_json_is_that_of_the_recording() -> None:
    old = {
        "hostname": "old1",
        "broadcast_address": "old1.example",
        "remote_address": "10.0.0.15:49284",
        "version": "1.2.1",
        "tombstones": [True],
    }
    nodes = merge_sightings(
        [
            ("lookup1.example:4161", producer(**old)),
            ("lookup1.example:4161", producer()),
            ("lookup2.example:4161", producer(remote_address="10.0.0.11:36646")),
        ]
    )
    assert [node.to_json() for node in nodes] == [
        {
            "remote_addresses": [
                "lookup1.example:4161/10.0.0.11:36424",
                "lookup2.example:4161/10.0.0.11:36646",
            ],
            "remote_address": "10.0.0.11:36424",
            "hostname": "nsqd1",
            "broadcast_address": "nsqd1.example",
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.3.0",
            "topics": [{"topic": "orders", "tombstoned": False}],
            "out_of_date": False,
        },
        {
            "remote_addresses": ["lookup1.example:4161/10.0.0.15:49284"],
            "remote_address": "10.0.0.15:49284",
            "hostname": "old1",
            "broadcast_address": "old1.example",
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.2.1",
            "topics": [{"topic": "orders", "tombstoned": True}],
            "out_of_date": True,
        },
    ]


def test_two_sightings_at_one_nsqlookupd_are_two_entries() -> None:
    [node] = merge_sightings([("l:1", producer()), ("l:1", producer(remote_address=""))])
    assert node.remote_addresses == ["l:1/10.0.0.11:36424", "l:1/N/A"]


@pytest.mark.parametrize("tombstones", [None, [], [True], "x", [None, 1, 2, 3]])
def test_tombstones_need_not_be_as_many_as_topics(tombstones: object) -> None:
    node = producer(topics=["b", "a"], tombstones=tombstones)
    assert [each.topic for each in node.topics] == ["a", "b"]
    assert [each.tombstoned for each in node.topics] == [False, tombstones == [True]]


def test_an_ipv6_address_is_in_brackets() -> None:
    assert producer(broadcast_address="fd00::5").address == "[fd00::5]:4151"


def test_versions_are_compared_as_versions() -> None:
    versions = [
        "not-semver",
        "0.0.1",
        "1.2.1",
        "1.3.0-alpha",
        "1.3.0-alpha.1",
        "1.3.0-rc.2",
        "1.3.0",
        "1.10.0",
    ]
    assert sorted(set(versions), key=version_key) == versions
    nodes = [producer(broadcast_address=version, version=version) for version in versions]
    told = {node.version: node.out_of_date for node in merge_sightings([("l:1", node) for node in nodes])}
    assert told == {version: version != "1.10.0" for version in versions}


def test_a_configured_nsqd_goes_by_its_address_where_it_says_nothing() -> None:
    node = parse_info({}, "10.0.0.1:4151")
    assert (node.address, node.hostname, node.dial_address) == ("10.0.0.1:4151", "10.0.0.1", "10.0.0.1:4151")


def test_a_configured_nsqd_is_named_by_what_it_broadcasts_and_reached_where_it_was_configured() -> None:
    node = parse_info({"broadcast_address": "inside", "http_port": 9, "hostname": "h"}, "outside:4151")
    assert (node.address, node.dial_address) == ("inside:9", "outside:4151")


@pytest.mark.parametrize("odd", [{}, {"topics": None, "tcp_port": "x", "hostname": 3}, {"topics": [1, None]}])
def test_an_odd_producer_is_borne(odd: dict[str, Any]) -> None:
    [node] = merge_sightings([("l:1", parse_producer(odd))])
    assert node.topics == []


def test_without_its_topics_a_node_has_those_that_are_tombstoned() -> None:
    told = {"topics": ["b", "a", "c"], "tombstones": [True, False, True]}
    assert [each.topic for each in parse_producer(told, topics=False).topics] == ["b", "c"]
    assert all(each.tombstoned for each in parse_producer(told, topics=False).topics)
    assert parse_producer({"topics": ["a"], "tombstones": [False]}, topics=False).topics == []
    assert parse_producer({"topics": ["a"], "tombstones": True}, topics=False).topics == []
