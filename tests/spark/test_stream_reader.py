"""The choice between logs and spool, and errors as Spark gets them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from nsquark.errors import NsquarkError
from nsquark.spark.errors import DataLost, OptionError
from tests.spark.broker import Broker, numbered
from tests.spark.source.query import ALL, Query


def test_a_query_reads_the_log_unless_it_has_spooled_or_is_told_to(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", numbered(5))
    assert Query(broker).reader.initialOffset().keys() == {"t"}
    for channel, options, offset in (
        ("told", {"mode": "consumer"}, None),
        ("before", {}, {"staged": 0}),
    ):
        folder = {"stagingDirectory": str(tmp_path / channel), "lookupd.pollIntervalMs": "10000"}
        query = Query(broker, channel=channel, **folder, **options)
        start = offset or query.reader.initialOffset()
        assert query.reader.latestOffset(start, ALL).keys() == {"staged"}
        query.stop()


def test_a_copy_for_an_executor_has_no_stream(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    query = Query(broker)
    query.reader.initialOffset()
    assert pickle.loads(pickle.dumps(query.reader))._stream is None


def test_a_checkpoint_of_another_source_is_refused(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    with pytest.raises(OptionError, match="option 'checkpointLocation'"):
        Query(broker).reader.latestOffset({"sources": 5}, ALL)


def test_nothing_that_is_wrong_has_a_traceback_of_ours(broker: Broker) -> None:
    with pytest.raises(NsquarkError) as caught:
        Query(broker).reader.initialOffset()
    frames = [entry.name for entry in caught.traceback]
    assert frames[-1] == "wrapper"
    broker.publish("t", numbered(3))
    query = Query(broker)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    broker.ask("POST", "/topic/delete?topic=t")
    broker.publish("t", numbered(5))
    with pytest.raises(DataLost) as caught:
        query.read(start, end)
    assert caught.traceback[-1].name == "iterate_without_traceback"
