"""The channel of a query at its nsqds: acknowledgements, and a channel that a user deletes."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.spark.broker import Broker, numbered
from tests.spark.source.query import ALL, Query


def test_an_acknowledgement_that_fails_is_no_failure(broker: Broker) -> None:
    broker.publish("t", numbered(2))
    for mode in ("eager", "engine"):
        query = Query(broker, ackMode=mode, channel=mode)
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, ALL)
        broker.kill()
        query.reader.commit(end)
        assert query.reader.latestOffset(end, ALL) == end
        broker.restart()
        query.reader.commit(end)
        query.reader.latestOffset(end, ALL)
        assert broker.depth("t", mode) == 0


def test_a_channel_that_was_deleted_is_made_again_at_its_place(broker: Broker) -> None:
    broker.publish("t", numbered(4))
    query = Query(broker)
    end = query.reader.latestOffset(query.reader.initialOffset(), ReadMaxRows(3))
    broker.ask("POST", "/channel/delete?topic=t&channel=q")
    last = query.reader.latestOffset(end, ALL)
    assert query.values(end, last) == numbered(1, 3)
    assert broker.log("t", "q")["channel"]["position"] == 3


def test_the_log_is_kept_until_the_query_commits(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--max-bytes-per-file=1").start() as broker:
        broker.ask("POST", "/topic/create?topic=t")
        query = Query(broker)
        start = query.reader.initialOffset()
        broker.ask("POST", "/channel/create?topic=t&channel=other")
        for number in range(10):
            broker.publish("t", numbered(1, number))
        broker.ask("POST", "/channel/commit?topic=t&channel=other&to=10")
        (topic,) = broker.ask("GET", "/stats?format=json&topic=t")["topics"]
        assert {each["channel_name"]: each["depth"] for each in topic["channels"]} == {"other": 0, "q": 10}
        end = query.reader.latestOffset(start, ReadMaxRows(4))
        assert broker.log("t")["first"] == 0
        query.reader.latestOffset(end, ALL)
        while broker.log("t")["first"] < 4:
            time.sleep(0.01)
        assert broker.log("t")["first"] == 4
        query.stop()
