"""The rows of tables: whatever a text holds, it stays text; and each menu offers what can be done."""

from __future__ import annotations

from typing import Any

import pytest

from nsquark.nsqadmin.cluster.stats import ChannelStats, TopicStats, merge_topics, parse_topics
from nsquark.nsqadmin.pages.parts.format import size
from nsquark.nsqadmin.pages.parts.links import Links
from nsquark.nsqadmin.pages.parts.rows import Rows

EVIL = "\"'><img src=x onerror=alert(1)>"
SAFE = "&#34;&#39;&gt;&lt;img src=x onerror=alert(1)&gt;"


def topic(name: str = "orders", **more: Any) -> TopicStats:
    latency = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 1_500_000}]}
    client = {"hostname": name, "remote_address": name, "client_id": name, "user_agent": name}
    channel = {
        "channel_name": name,
        "clients": [client],
        "e2e_processing_latency": latency,
        "depth": 5,
        "client_count": 0,
    }
    told = {"topic_name": name, "channels": [channel], "e2e_processing_latency": latency, **more}
    records = [
        record
        for node in ("a:1", "b:1")
        for record in parse_topics({"topics": [told]}, f"{name}{node}", name, 1000.0)
    ]
    return merge_topics(name, records)


def rows_of(merged: TopicStats, *, admin: bool = True, lookupds: bool = True) -> dict[str, str]:
    rows = Rows(Links("/"))
    channel = merged.channels[0]
    return {
        "channels": rows.channels(merged, {channel.channel_name: None}, admin),
        "nodes of topic": rows.nodes_of_topic(merged, admin, lookupds),
        "total of topic": rows.total_of_topic(merged, admin),
        "clients": rows.clients(channel.clients or ()),
        "nodes of channel": rows.nodes_of_channel(channel, admin, lookupds),
        "total of channel": rows.total_of_channel(channel, admin),
    }


def test_a_name_that_is_markup_stays_text_in_every_row() -> None:
    made = rows_of(topic(EVIL))
    for name, text in made.items():
        assert "<img" not in text, name
        assert (SAFE in text) is not name.startswith("total"), name


def test_markup_is_not_escaped_twice() -> None:
    for text in rows_of(topic()).values():
        assert "&lt;" not in text


@pytest.mark.parametrize(
    ("more", "lookupds", "entries"),
    [
        ({}, True, ["Pause here", "Empty here", "Tombstone"]),
        ({"paused": True}, False, ["Unpause here", "Empty here"]),
        ({"retention_bytes": 0}, False, ["Pause here", "Empty here", "Retention here"]),
    ],
)
def test_the_menu_of_a_node_offers_what_can_be_done_there(
    more: dict[str, Any], lookupds: bool, entries: list[str]
) -> None:
    nodes = topic(**more).nodes
    assert nodes is not None
    assert [label for label, _, _ in Rows(Links("/")).node_menu(nodes[0], lookupds)] == entries


def test_a_node_with_an_archive_tells_what_is_only_there() -> None:
    kept = {"retention_bytes": 0, "retention_time": 0, "log_bytes": 2048}
    for more, shown in (({}, False), ({"log_archived_bytes": 3 << 20}, True)):
        made = rows_of(topic(**kept, **more))
        for name in ("nodes of topic", "total of topic"):
            assert ('data-label="Archive"' in made[name]) is shown
        assert (size(3 << 20) in made["nodes of topic"]) is shown
        assert (size(6 << 20) in made["total of topic"]) is shown


def test_a_menu_follows_what_it_is_about() -> None:
    rows = Rows(Links("/"))
    before, after = topic(), topic(paused=True)
    assert "Pause here" in rows.nodes_of_topic(before, True, True)
    assert "Unpause here" in rows.nodes_of_topic(after, True, True)
    assert "Tombstone" in rows.nodes_of_topic(before, True, True)
    assert "Tombstone" not in rows.nodes_of_topic(before, True, False)


def test_a_reader_who_is_no_admin_has_no_menus() -> None:
    for text in rows_of(topic(), admin=False).values():
        assert "Actions for" not in text
        assert "/act?" not in text


def test_a_channel_that_nobody_reads_and_one_with_dead_letters_are_marked() -> None:
    merged = topic()
    quiet = ChannelStats(
        "*", "", "orders", "quiet", client_count=1, dead_letter_count=2, paused=True, nodes=[]
    )
    merged.channels.append(quiet)
    first, second = (
        Rows(Links("/")).channels(merged, {"orders": 1.5, "quiet": None}, False).split("</tr>\n")[:2]
    )
    assert ("no consumer" in first, "dead" in first, "paused" in first) == (True, False, False)
    assert ("no consumer" in second, "2 dead" in second, "paused" in second) == (False, True, True)
    assert 'title="lowest node 1.5 ms, highest 1.5 ms">1.5 ms<' in first
    assert 'data-label="p99">–<' in second
