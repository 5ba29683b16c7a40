"""Seeking, emptying and renaming the channel of a query."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from nsquark.spark.columns import SCHEMA
from nsquark.spark.source.batch_reader import NsqBatchReader
from nsquark.spark.source.options import parse_batch_options
from tests.spark.broker import Broker, numbered
from tests.spark.reports.test_listener import until as poll_until
from tests.spark.source.query import ALL, Offset, Query, place


def post(broker: Broker, path: str) -> Any:
    return broker.ask("POST", path + "&topic=t")


def run(query: Query, start: Offset, batches: int = 3) -> tuple[list[bytes], Offset]:
    """The rows of the next batches, each read twice with the same result, and where they end."""
    values: list[bytes] = []
    for _ in range(batches):
        end = query.reader.latestOffset(start, ALL)
        rows = query.values(start, end)
        assert query.values(start, end) == rows
        values += rows
        start = end
    return values, start


@pytest.fixture
def begun(broker: Broker) -> tuple[Query, Offset]:
    """A query that has read and acknowledged 100 messages."""
    broker.publish("t", numbered(100))
    query = Query(broker)
    values, offset = run(query, query.reader.initialOffset())
    assert values == numbered(100)
    return query, offset


def test_a_live_query_goes_back_and_says_so(
    broker: Broker, begun: tuple[Query, Offset], caplog: pytest.LogCaptureFixture
) -> None:
    query, offset = begun
    assert post(broker, "/channel/seek?channel=q&to=40")["position"] == 40
    broker.publish("t", numbered(5, 100))
    values, offset = run(query, offset)
    assert values == numbered(65, 40)
    (record,) = [each for each in caplog.records if "moved" in each.getMessage()]
    assert (
        "topic t, channel q: an operator has moved it from 100 to 40; the query goes" in record.getMessage()
    )
    assert record.levelno == logging.WARNING
    assert broker.depth("t", "q") == 0
    broker.publish("t", numbered(1, 105))
    assert run(query, offset)[0] == numbered(1, 105)


def test_a_seek_during_a_batch_counts_behind_it(broker: Broker) -> None:
    broker.publish("t", numbered(100))
    query = Query(broker)
    start = query.reader.initialOffset()
    middle = query.reader.latestOffset(start, ReadMaxRows(50))
    post(broker, "/channel/seek?channel=q&to=20")
    assert query.values(start, middle) == numbered(50)
    again = Query(broker, channel="q")  # a crash, and the first batch is replayed
    query.stop()
    assert again.values(again.reader.initialOffset(), middle) == numbered(50)
    assert run(again, middle)[0] == numbered(80, 20)


@pytest.mark.parametrize("options", [{}, {"ackMode": "engine"}])
def test_a_stopped_query_goes_on_where_it_was_moved(broker: Broker, options: dict[str, str]) -> None:
    broker.publish("t", numbered(100))
    query = Query(broker, **options)
    _, offset = run(query, query.reader.initialOffset())
    query.stop()
    post(broker, "/channel/seek?channel=q&to=earliest")
    query = Query(broker, **options)
    values, offset = run(query, offset)
    assert values == numbered(100)
    query.reader.commit(offset)
    query.stop()
    broker.publish("t", numbered(100, 100))
    post(broker, "/channel/seek?channel=q&to=150")
    query = Query(broker, **options)
    values, offset = run(query, offset)
    assert values == numbered(50, 150)
    query.stop()
    broker.publish("t", numbered(1, 200))
    assert run(Query(broker, **options), offset)[0] == numbered(1, 200)


def test_what_was_emptied_is_not_read(broker: Broker, begun: tuple[Query, Offset]) -> None:
    query, offset = begun
    query.stop()
    broker.publish("t", numbered(400, 100))
    post(broker, "/channel/empty?channel=q")
    broker.publish("t", numbered(100, 500))
    broker.kill()  # right after the answer
    broker.start()
    query = Query(broker)
    values, offset = run(query, offset)
    assert values == numbered(100, 500)
    broker.publish("t", numbered(10, 600))
    post(broker, "/channel/empty?channel=q")  # of a live query
    broker.publish("t", numbered(10, 610))
    values, offset = run(query, offset)
    assert values == numbered(10, 610)
    post(broker, "/topic/pause?")  # which does not keep a query from reading
    broker.publish("t", numbered(10, 620))
    end = query.reader.latestOffset(offset, ALL)
    assert query.values(offset, end) == numbered(10, 620)
    post(broker, "/channel/empty?channel=q")  # the topic has not passed these on, and they are not read twice
    broker.publish("t", numbered(1, 630))
    assert run(query, end)[0] == numbered(1, 630)


def test_what_was_emptied_of_the_topic_is_not_read(broker: Broker, begun: tuple[Query, Offset]) -> None:
    query, offset = begun
    query.stop()
    broker.publish("t", numbered(10, 100))
    post(broker, "/topic/pause?")
    broker.publish("t", numbered(10, 110))
    post(broker, "/topic/empty?")
    post(broker, "/topic/unpause?")
    broker.publish("t", numbered(10, 120))
    assert broker.depth("t", "q") == 20
    query = Query(broker)
    values, offset = run(query, offset, 5)
    assert values == numbered(10, 100) + numbered(10, 120)
    assert place(offset) == 130
    post(broker, "/topic/empty?")  # nothing waits in the topic, and the channel keeps what it has
    broker.publish("t", numbered(5, 130))
    assert run(query, offset)[0] == numbered(5, 130)


def test_available_now_follows_and_ends(broker: Broker, begun: tuple[Query, Offset]) -> None:
    query, offset = begun
    query.stop()
    for to, rows in (("90", numbered(10, 90)), ("latest", [])):
        post(broker, f"/channel/seek?channel=q&to={to}")
        query = Query(broker)
        query.reader.prepareForTriggerAvailableNow()
        values = []
        while (end := query.reader.latestOffset(offset, ReadMaxRows(3))) != offset:
            values += query.values(offset, end)
            offset = end
        assert values == rows
        query.stop()


def test_one_of_two_nsqds_is_moved(broker: Broker, other: Broker) -> None:
    broker.publish("t", numbered(10))
    other.publish("t", numbered(10, 100))
    query = Query(broker, other)
    _, offset = run(query, query.reader.initialOffset())
    post(other, "/channel/seek?channel=q&to=5")
    query.reader.latestOffset(offset, ALL)
    assert run(query, offset)[0] == numbered(5, 105)


def test_a_channel_that_is_deleted_and_created_keeps_the_querys_place(
    broker: Broker, begun: tuple[Query, Offset]
) -> None:
    query, offset = begun
    post(broker, "/channel/seek?channel=q&to=99")
    values, offset = run(query, offset)
    post(broker, "/channel/delete?channel=q")
    broker.publish("t", numbered(3, 100))
    values, offset = run(query, offset)
    assert values == numbered(3, 100)
    post(broker, "/channel/seek?channel=q&to=101")
    assert run(query, offset)[0] == numbered(2, 101)


def test_another_channel_with_the_same_checkpoint(
    broker: Broker, begun: tuple[Query, Offset], caplog: pytest.LogCaptureFixture
) -> None:
    query, offset = begun
    query.stop()
    broker.publish("t", numbered(10, 100))
    query = Query(broker, channel="new")
    values, offset = run(query, offset, 4)
    assert values == numbered(10, 100)
    told = [each.getMessage() for each in caplog.records if "option 'channel'" in each.getMessage()]
    assert told == [
        "option 'channel': the checkpoint is of channel 'q', and the query goes on with channel 'new'; "
        "the nsqds keep their logs for channel 'q' until it is deleted or read by another query"
    ]
    assert (broker.depth("t", "q"), broker.depth("t", "new")) == (10, 0)
    query.stop()
    caplog.clear()
    run(Query(broker, channel="new"), offset)
    assert not [each for each in caplog.records if "option 'channel'" in each.getMessage()]


def test_a_checkpoint_from_before_moves_were_counted_goes_on(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    query = Query(broker)
    start = query.reader.initialOffset()
    ((node, told),) = start["t"].items()
    old = {"t": {node: {"epoch": told["epoch"], "nsqd": told["nsqd"], "offset": 4}}}
    assert run(query, old)[0] == numbered(6, 4)


def test_earliest_warns_if_the_beginning_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tmp_path / "data", "--max-bytes-per-file=2000").start() as broker:
        broker.publish("kept", numbered(10))
        post(broker, "/topic/create?")
        Query(broker, subscribe="kept", channel="fine").reader.initialOffset()
        assert not caplog.records
        broker.ask("POST", "/channel/create?topic=t&channel=done")
        for number in range(20):
            broker.publish("t", numbered(20, 20 * number))
        broker.ask("POST", "/channel/seek?topic=t&channel=done&to=latest")
        poll_until(lambda: broker.log("t")["first"] > 0)
        first = broker.log("t")["first"]
        query = Query(broker, channel="late")
        assert place(query.reader.initialOffset()) == first
        query.stop()
        (record,) = caplog.records
        assert (
            f"'earliest' is position {first}; the messages [0, {first}) are no longer" in record.getMessage()
        )
        caplog.clear()
        where = {"nsqd.http.addresses": broker.http_address, "subscribe": "t"}
        for starting, warnings in (("earliest", 1), (f'{{"t": {{"{broker.tcp_address}": {first}}}}}', 0)):
            table = NsqBatchReader(parse_batch_options({**where, "startingOffsets": starting}), SCHEMA)
            assert table.partitions()
            assert len(caplog.records) == warnings
            caplog.clear()
        Query(broker, channel="late").reader.initialOffset()  # the channel is there, and begins where it is
        assert not caplog.records
