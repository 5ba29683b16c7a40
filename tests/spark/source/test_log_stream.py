"""The streaming reader against real nsqds, called in Spark's order but without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import DataLost, NoSuchTopic, OptionError, Unreachable
from nsquark.spark.source.options import parse_stream_options
from nsquark.spark.stream_reader import NsqStreamReader
from tests.spark.broker import Broker, numbered
from tests.spark.source.query import ALL, Offset, Query, place


def test_batches_follow_each_other(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    query = Query(broker)
    start = query.reader.initialOffset()
    assert place(start) == 0
    end = query.reader.latestOffset(start, ALL)
    assert place(end) == 5
    rows = query.read(start, end)
    assert [row["value"] for row in rows] == numbered(5)
    assert [row["offset"] for row in rows] == list(range(5))
    assert {row["topic"] for row in rows} == {"t"}
    assert {row["nsqd"] for row in rows} == {f"127.0.0.1:{broker.tcp_port}"}
    assert len({row["id"] for row in rows}) == 5
    broker.publish("t", numbered(3, 5))
    after = query.reader.latestOffset(end, ALL)
    assert query.values(end, after) == numbered(3, 5)
    assert query.reader.latestOffset(after, ALL) == after


def test_the_next_offset_acknowledges_the_last(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    query = Query(broker)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    query.reader.commit(start)
    assert broker.depth("t", "q") == 5
    assert query.reader.latestOffset(end, ALL) == end
    assert broker.depth("t", "q") == 0
    assert place(query.reader.reportLatestOffset() or {}) == place(end)


def test_with_ack_mode_engine_commit_does(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    query = Query(broker, ackMode="engine")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    query.reader.latestOffset(end, ALL)
    assert broker.depth("t", "q") == 5
    query.reader.commit(end)
    assert broker.depth("t", "q") == 0


def test_the_first_offset_stays_until_it_is_acknowledged(broker: Broker) -> None:
    broker.publish("t", numbered(5))
    query = Query(broker, startingOffsets="latest")
    start = query.reader.initialOffset()
    assert place(start) == 5
    broker.publish("t", numbered(3, 5))
    assert query.reader.initialOffset() == start
    query.stop()
    broker.kill()
    broker.restart()
    assert Query(broker, startingOffsets="latest").reader.initialOffset() == start


@pytest.mark.parametrize(
    ("limit", "rows"), [(ReadMaxRows(7), 7), (ReadMaxBytes(480), 10), (ReadMaxBytes(1), 1), (ALL, 20)]
)
def test_limits(broker: Broker, limit: ReadLimit, rows: int) -> None:
    for number in range(20):  # each a batch of its own: 48 bytes of header, 34 of frame
        broker.publish("t", [b"%014d" % number])
    query = Query(broker)
    start = query.reader.initialOffset()
    average = broker.log("t")["bytes"] / 20
    if isinstance(limit, ReadMaxBytes):
        limit = ReadMaxBytes(int(limit.max_bytes / 48 * average) or 1)
    assert place(query.reader.latestOffset(start, limit)) == rows


def test_the_default_limit_comes_from_the_options(broker: Broker) -> None:
    assert Query(broker).reader.getDefaultReadLimit() == ALL
    assert Query(broker, maxOffsetsPerTrigger="5").reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert Query(broker, maxBytesPerTrigger="5").reader.getDefaultReadLimit() == ReadMaxBytes(5)


def test_too_little_waits_but_not_for_ever(broker: Broker) -> None:
    broker.publish("t", numbered(1))
    query = Query(broker, minOffsetsPerTrigger="3", maxTriggerDelay="1h")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    assert place(end) == 1  # the first batch does not wait
    broker.publish("t", numbered(2, 1))
    assert query.reader.latestOffset(end, ALL) == end
    assert place(query.reader.reportLatestOffset() or {}) == 3
    broker.publish("t", numbered(1, 3))
    assert place(query.reader.latestOffset(end, ALL)) == 4


def test_the_delay_is_kept(broker: Broker) -> None:
    broker.publish("t", numbered(1))
    query = Query(broker, minOffsetsPerTrigger="3", maxTriggerDelay="0ms")
    end = query.reader.latestOffset(query.reader.initialOffset(), ALL)
    broker.publish("t", numbered(1, 1))
    assert place(query.reader.latestOffset(end, ALL)) == 2


def test_available_now_does_not_pass_what_there_was(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    query = Query(broker, minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    query.reader.prepareForTriggerAvailableNow()
    broker.publish("t", numbered(10, 10))
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ReadMaxRows(6))
    last = query.reader.latestOffset(end, ReadMaxRows(6))
    assert (place(end), place(last)) == (6, 10)
    assert query.reader.latestOffset(last, ReadMaxRows(6)) == last
    assert broker.depth("t", "q") == 10


def test_partitions_are_cut_as_asked(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    for channel, options, number in (
        ("a", {}, 1),
        ("b", {"minPartitions": "4"}, 4),
        ("c", {"maxRecordsPerPartition": "3"}, 4),
    ):
        query = Query(broker, channel=channel, **options)
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, ALL)
        assert len(query.reader.partitions(start, end)) == number
        assert query.values(start, end) == numbered(10)
        assert query.reader.partitions(end, end) == []


def test_a_small_fetch_gives_the_same_rows(broker: Broker) -> None:
    for first in range(0, 500, 10):
        broker.publish("t", numbered(10, first))
    query = Query(broker, fetchBytes="1000")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    assert query.values(start, end) == numbered(500)


# ---- where to begin


def test_begin_at_a_position_or_a_time(broker: Broker) -> None:
    broker.publish("t", numbered(3))
    broker.publish("t", numbered(3, 3))
    rows = Query(broker)
    start = rows.reader.initialOffset()
    times = [row["timestamp"] for row in rows.read(start, rows.reader.latestOffset(start, ALL))]
    name = f"127.0.0.1:{broker.tcp_port}"
    node = broker.log("t")["node"]
    for channel, options, first in [
        ("a", {"startingOffsets": f'{{"t": {{"{name}": 2}}}}'}, 2),
        ("b", {"startingOffsets": f'{{"t": {{"{node}": 4}}}}'}, 4),
        ("c", {"startingOffsets": f'{{"t": {{"{node}": -1}}}}'}, 6),
        ("d", {"startingTimestamp": str(int(times[0].timestamp() * 1000))}, 0),
        ("e", {"startingTimestamp": str(int(times[5].timestamp() * 1000) + 1)}, 6),
    ]:
        assert place(Query(broker, channel=channel, **options).reader.initialOffset()) == first, options


def test_a_position_that_is_not_there(broker: Broker) -> None:
    broker.publish("t", numbered(3))
    name = f"127.0.0.1:{broker.tcp_port}"
    with pytest.raises(DataLost, match=r"option 'startingOffsets': .* offsets 7 .* the log has \[0, 3\)"):
        Query(broker, startingOffsets=f'{{"t": {{"{name}": 7}}}}').reader.initialOffset()
    with pytest.raises(OptionError, match="option 'startingOffsets': topic 't' is not at nsqd 'nowhere'"):
        Query(broker, startingOffsets='{"t": {"nowhere": 7}}').reader.initialOffset()


def test_an_unknown_topic_and_an_nsqd_that_is_not_there(broker: Broker) -> None:
    with pytest.raises(NoSuchTopic, match=f"no topic 't' at 127.0.0.1:{broker.tcp_port}"):
        Query(broker).reader.initialOffset()
    with pytest.raises(NoSuchTopic, match="option 'subscribePattern': no topic matches"):
        Query(broker, subscribePattern="x.*").reader.initialOffset()
    address = broker.http_address
    broker.kill()
    with pytest.raises(Unreachable, match=f"http://{address} cannot be reached"):
        Query(broker).reader.initialOffset()


def test_an_nsqd_by_its_tcp_address(broker: Broker) -> None:
    broker.publish("t", numbered(3))
    given = {"nsqd.tcp.addresses": broker.tcp_address, "subscribe": "t", "channel": "q"}
    reader = NsqStreamReader(parse_stream_options({**given, "startingOffsets": "earliest"}), SCHEMA)
    assert place(reader.latestOffset(reader.initialOffset(), ALL)) == 3


# ---- several


def test_several_topics_by_pattern_and_one_that_comes_later(broker: Broker) -> None:
    broker.publish("t1", numbered(2))
    broker.publish("u", numbered(2))
    query = Query(broker, subscribePattern="t.*")
    start = query.reader.initialOffset()
    assert list(start) == ["t1"]
    end = query.reader.latestOffset(start, ALL)
    broker.publish("t2", numbered(3, 2))
    found = query.reader.latestOffset(end, ALL)
    assert (list(found), query.read(end, found)) == (["t1", "t2"], [])
    last = query.reader.latestOffset(found, ALL)
    assert query.values(found, last) == numbered(3, 2)


def test_nsqds_come_go_and_return(broker: Broker, other: Broker) -> None:
    broker.publish("t", numbered(2))
    query = Query(broker, other)
    start = query.reader.initialOffset()
    assert place(start) == 0  # the other has no such topic yet
    end = query.reader.latestOffset(start, ALL)
    other.publish("t", numbered(2, 2))
    both = query.reader.latestOffset(end, ALL)
    assert len(both["t"]) == 2
    assert query.read(end, both) == []
    after = query.reader.latestOffset(both, ALL)
    assert query.values(both, after) == numbered(2, 2)
    other.kill()
    assert query.reader.latestOffset(after, ALL) == after
    broker.publish("t", numbered(1, 4))
    alone = query.reader.latestOffset(after, ALL)
    assert query.values(after, alone) == numbered(1, 4)
    other.restart()
    other.publish("t", numbered(1, 5))
    again = query.reader.latestOffset(alone, ALL)
    assert query.values(alone, again) == numbered(1, 5)
    assert query.reader.latestOffset(again, ALL) == again
    assert (broker.depth("t", "q"), other.depth("t", "q")) == (0, 0)


def test_an_nsqd_that_moves_is_the_same(broker: Broker) -> None:
    broker.publish("t", numbered(2))
    query = Query(broker)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    rows = query.read(start, end)
    query.stop()
    broker.kill()
    broker.tcp_address = broker.http_address = "127.0.0.1:0"
    broker.restart()
    moved = Query(broker)
    assert moved.read(start, end) == rows  # even the name is the one it had
    assert moved.reader.latestOffset(end, ALL)["t"].keys() == end["t"].keys()


def test_a_batch_that_needs_an_nsqd_that_is_away_says_so(broker: Broker, other: Broker) -> None:
    for each in (broker, other):
        each.publish("t", numbered(2))
    query = Query(broker, other)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    query.stop()
    other.kill()
    replay = Query(broker, other)
    with pytest.raises(Unreachable, match=f"the batch needs nsqd 127.0.0.1:{other.tcp_port}"):
        replay.read(start, end)
    other.restart()
    assert len(replay.read(start, end)) == 4


def test_the_first_batch_is_replayed_though_an_nsqd_was_away_when_it_began_again(
    broker: Broker, other: Broker
) -> None:
    """Spark asks for the initial offset again, since its own log does not hold it."""
    for each in (broker, other):
        each.publish("t", numbered(2))
    query = Query(broker, other)
    end = query.reader.latestOffset(query.reader.initialOffset(), ALL)
    query.stop()
    other.kill()
    replay = Query(broker, other)
    start = replay.reader.initialOffset()
    assert len(start["t"]) == 1
    other.restart()
    assert len(replay.read(start, end)) == 4


# ---- faults


def test_a_restart_in_the_middle_of_a_span_is_taken_up_where_it_was(broker: Broker) -> None:
    for first in range(0, 3000, 100):
        broker.publish("t", numbered(100, first))
    query = Query(broker, fetchBytes="2000")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    (partition,) = query.reader.partitions(start, end)
    batches = query.reader.read(partition)
    rows = next(batches).to_pylist()
    broker.kill()
    broker.restart()
    rows += [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == numbered(3000)


# ---- what is lost


def lose_by_deleting(broker: Broker) -> None:
    broker.ask("POST", "/topic/delete?topic=t")
    broker.publish("t", numbered(2, 100))


@pytest.fixture
def worn(broker: Broker) -> tuple[Query, Offset, Callable[..., Query]]:
    """A query that has read 5 of 10."""
    broker.publish("t", numbered(10))
    query = Query(broker)
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ReadMaxRows(5))

    def again(**options: str) -> Query:
        query.stop()
        return Query(broker, **options)

    return query, end, again


def test_a_log_that_was_wiped_is_named(broker: Broker, worn: Any) -> None:
    query, end, _ = worn
    lose_by_deleting(broker)
    told = broker.log("t")
    expected = (
        rf"offsets 5 are to be read, but the log has \[{told['first']}, {told['next']}\) in another log"
    )
    with pytest.raises(DataLost, match=expected):
        query.reader.latestOffset(end, ALL)


def test_without_fail_on_data_loss_the_query_goes_on_with_the_new_log(broker: Broker, worn: Any) -> None:
    _, end, again = worn
    lose_by_deleting(broker)
    query = again(failOnDataLoss="false")
    found = query.reader.latestOffset(end, ALL)
    assert query.read(end, found) == []
    last = query.reader.latestOffset(found, ALL)
    assert query.values(found, last) == numbered(2, 100)
    assert query.reader.latestOffset(last, ALL) == last


def test_a_span_that_was_wiped_before_it_was_read(broker: Broker, worn: Any) -> None:
    query, end, again = worn
    last = query.reader.latestOffset(end, ALL)
    lose_by_deleting(broker)
    with pytest.raises(DataLost, match=r"offsets \[5, 10\) are to be read"):
        query.read(end, last)
    assert again(failOnDataLoss="false").read(end, last) == []


def test_a_log_that_was_trimmed_is_named(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", "--max-bytes-per-file=1").start() as broker:
        for number in range(10):
            broker.publish("t", numbered(1, number))
        query = Query(broker)
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, ReadMaxRows(5))
        last = query.reader.latestOffset(end, ALL)
        broker.ask("POST", "/channel/commit?topic=t&channel=q&to=8")  # another program does
        while broker.log("t")["first"] < 8:
            time.sleep(0.01)
        with pytest.raises(DataLost, match=r"offsets 5 are to be read, but the log has \[8, 10\);"):
            query.reader.latestOffset(end, ALL)
        with pytest.raises(DataLost, match=r"offsets \[5, 10\) are to be read, but the log has \[8, 10\);"):
            query.read(end, last)
        query.stop()
        lenient = Query(broker, failOnDataLoss="false")
        assert lenient.reader.latestOffset(end, ALL) == last
        assert lenient.values(end, last) == numbered(2, 8)
        lenient.stop()
