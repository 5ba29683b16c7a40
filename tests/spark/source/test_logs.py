"""Answers to /log/range: which logs there are, and positions that name none of them."""

from __future__ import annotations

import pytest

from nsquark.spark.errors import NoSuchTopic, OptionError, RequestRefused, Unreachable
from nsquark.spark.http import Access
from nsquark.spark.source.bounds import Bound
from nsquark.spark.source.directory import Node
from nsquark.spark.source.logs import (
    LogRange,
    NsqdWithoutLog,
    ask_log_range,
    check_positions,
    check_topics,
    present,
)
from tests.spark.broker import Broker, numbered

LOG = LogRange("t", "id", Node("h:4150", "http://h:4151"), "e", 0, 1, 100)


def test_a_log_is_told_with_its_cursor_and_the_position_at_a_time(broker: Broker) -> None:
    broker.publish("t", numbered(3))
    broker.ask("POST", "/channel/create?topic=t&channel=c")
    node = Node(broker.tcp_address, f"http://{broker.http_address}")
    log = ask_log_range(node, Access(), "t", channel="c", timestamp_ms=0)
    assert (log.first, log.next, log.position, log.cursor) == (0, 3, 0, 0)
    assert log.key == ("t", log.nsqd_id)
    with pytest.raises(RequestRefused, match="TOPIC_NOT_FOUND"):
        ask_log_range(node, Access(), "u")


def test_an_nsqd_whose_http_port_is_not_known_has_no_log() -> None:
    with pytest.raises(NsqdWithoutLog, match="h:4150"):
        ask_log_range(Node("h:4150", ""), Access(), "t")


def test_an_nsqd_that_is_away_or_lacks_the_topic_is_passed_over() -> None:
    lacking = RequestRefused("http://h:1", 404, "TOPIC_NOT_FOUND", {})
    assert list(present([Unreachable("away"), LOG, lacking])) == [LOG]
    with pytest.raises(RequestRefused, match="401"):
        list(present([LOG, RequestRefused("http://h:1", 401, "AUTH_FAILED", {})]))


def test_positions_must_name_topics_and_nsqds_that_are_read() -> None:
    for name in ("id", "h:4150"):
        check_positions(Bound(positions={"t": {name: 5}}), [LOG])
    with pytest.raises(OptionError, match="option 'startingOffsets': topic 't' is not at nsqd 'x'"):
        check_positions(Bound(positions={"t": {"x": 5}}), [LOG])
    with pytest.raises(NoSuchTopic, match="option 'endingTimestamp': no topic 'u' among"):
        check_topics(Bound(times={"u": {"*": 5}}, option="endingTimestamp"), [LOG])
