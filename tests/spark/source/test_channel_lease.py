"""One query per channel: a second one is refused until the first has ended."""

from __future__ import annotations

import pytest

from nsquark.spark.errors import ChannelInUse
from tests.spark.broker import Broker, numbered
from tests.spark.source.query import ALL, Query


def test_a_second_query_is_refused_and_may_come_when_the_first_is_gone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsquark.spark.source.channel_lease._TAKE_TIMEOUT", 0.0)
    broker.publish("t", numbered(1))
    first = Query(broker)
    start = first.reader.initialOffset()
    second = Query(broker)
    with pytest.raises(ChannelInUse, match=r"option 'channel': 'q' of topic 't' .* is read by another query"):
        second.reader.initialOffset()
    with pytest.raises(ChannelInUse):
        Query(broker).reader.latestOffset(start, ALL)
    Query(broker, channel="another").reader.initialOffset()
    monkeypatch.undo()  # a new one waits a little for the end of an old one
    first.stop()
    assert Query(broker).reader.initialOffset() == start


def test_a_query_that_stops_before_its_request_is_held_makes_way(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish("t", numbered(1))
    # Its thread does not get to hold a request, as if the query had failed at once.
    with monkeypatch.context() as patch:
        patch.setattr("nsquark.spark.source.channel_lease.ChannelLease._keep", lambda *_: None)
        first = Query(broker)
        start = first.reader.initialOffset()
        first.stop()
    assert Query(broker).reader.initialOffset() == start
