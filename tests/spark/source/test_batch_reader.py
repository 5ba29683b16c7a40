"""Tables of topics without a Spark session: which ranges are planned, by positions, times and filters."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import DataLost, NoSuchTopic, OptionError, Unreachable
from nsquark.spark.source.batch_reader import NsqBatchReader
from nsquark.spark.source.options import parse_batch_options
from nsquark.spark.source.partitions import LogPartition
from tests.spark.broker import Broker, numbered

MINUTE = timedelta(minutes=1)


def table(*brokers: Broker, **options: str) -> NsqBatchReader:
    addresses = ",".join(each.http_address for each in brokers)
    given = {"nsqd.http.addresses": addresses, "filterPushdown": "true", **options}
    if "subscribePattern" not in options and "assign" not in options:
        given.setdefault("subscribe", "t")
    return NsqBatchReader(parse_batch_options(given), SCHEMA)


def spans(reader: NsqBatchReader) -> list[tuple[str, int, int]]:
    found = [each for each in reader.partitions() if isinstance(each, LogPartition)]
    return [(each.span.topic, each.span.start, each.span.end) for each in found]


def rows(reader: NsqBatchReader) -> list[dict[str, Any]]:
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]


def filtered(reader: NsqBatchReader, *conditions: Filter) -> NsqBatchReader:
    """As Spark does where filterPushdown is enabled; it looks again at whatever comes."""
    assert list(reader.pushFilters(list(conditions))) == list(conditions)
    return reader


def test_a_range_of_positions(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    name, node = f"127.0.0.1:{broker.tcp_port}", broker.log("t")["node"]
    assert spans(table(broker)) == [("t", 0, 10)]
    for nsqd in (name, node):
        given = {
            "startingOffsets": json.dumps({"t": {nsqd: 3}}),
            "endingOffsets": json.dumps({"t": {nsqd: 7}}),
        }
        assert spans(table(broker, **given)) == [("t", 3, 7)]
        assert [row["value"] for row in rows(table(broker, **given))] == numbered(4, 3)
    ends = {"startingOffsets": json.dumps({"t": {name: -2}}), "endingOffsets": json.dumps({"t": {name: -1}})}
    assert spans(table(broker, **ends)) == [("t", 0, 10)]
    assert spans(table(broker, startingOffsets=json.dumps({"t": {name: 10}}))) == []


def test_a_range_of_times(broker: Broker) -> None:
    for number in range(4):
        broker.publish("t", numbered(1, number))
    times = [row["timestamp"] for row in rows(table(broker))]
    ms = [int(each.timestamp() * 1000) for each in times]
    everything = table(broker, startingTimestamp=str(ms[0]), endingTimestamp=str(ms[3] + 1))
    assert spans(everything) == [("t", 0, 4)]
    first = ms.index(ms[2])  # two may be of one millisecond
    assert spans(table(broker, startingTimestamp=str(ms[2]))) == [("t", first, 4)]
    assert spans(table(broker, endingTimestamp=str(ms[0]))) == []
    assert spans(table(broker, startingTimestamp=str(ms[3] + 60_000))) == []


def test_partitions_are_cut_as_asked(broker: Broker, other: Broker) -> None:
    broker.publish("t", numbered(10))
    other.publish("t", numbered(10, 10))
    assert len(spans(table(broker, other))) == 2
    assert len(spans(table(broker, other, minPartitions="4"))) == 4
    cut = spans(table(broker, other, maxRecordsPerPartition="4"))
    assert len(cut) == 6
    assert max(end - start for _, start, end in cut) <= 4
    found = rows(table(broker, other, maxRecordsPerPartition="4"))
    assert sorted(row["value"] for row in found) == sorted(numbered(20))


def test_topics_by_pattern(broker: Broker) -> None:
    for topic in ("a.1", "a.2", "b"):
        broker.publish(topic, numbered(2))
    assert spans(table(broker, subscribePattern=r"a\..")) == [("a.1", 0, 2), ("a.2", 0, 2)]
    with pytest.raises(NoSuchTopic, match="option 'subscribePattern': no topic matches"):
        spans(table(broker, subscribePattern="c"))


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 7)], [(3, 7)]),
        ([GreaterThan(("offset",), 3), LessThanOrEqual(("offset",), 7)], [(4, 8)]),
        ([EqualTo(("offset",), 5)], [(5, 6)]),
        ([EqualTo(("offset",), 500)], []),
        ([GreaterThan(("offset",), 8), LessThan(("offset",), 3)], []),
        ([EqualTo(("topic",), "t"), IsNotNull(("value",))], [(0, 10)]),
        ([In(("topic",), ("u", "v"))], []),
        ([EqualTo(("value",), b"x")], [(0, 10)]),
    ],
)
def test_filters_narrow_what_is_read(
    broker: Broker, conditions: list[Filter], expected: list[tuple[int, int]]
) -> None:
    broker.publish("t", numbered(10))
    found = spans(filtered(table(broker), *conditions))
    assert [(start, end) for _, start, end in found] == expected


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-5)), None])
def test_times_narrow_what_is_read_with_a_margin(broker: Broker, zone: timezone | None) -> None:
    """A clock may be set back by a minute."""
    broker.publish("t", numbered(10))
    now = datetime.now(UTC)
    here = now.astimezone(zone) if zone is not None else now.replace(tzinfo=None)
    for condition, expected in [
        (GreaterThan(("timestamp",), here - 3 * MINUTE), 10),
        (GreaterThan(("timestamp",), here + MINUTE / 2), 10),
        (GreaterThan(("timestamp",), here + 3 * MINUTE), 0),
        (LessThan(("timestamp",), here - 3 * MINUTE), 0),
        (LessThan(("timestamp",), here + 3 * MINUTE), 10),
    ]:
        assert sum(end - start for _, start, end in spans(filtered(table(broker), condition))) == expected


def test_what_is_not_there_is_told(broker: Broker) -> None:
    broker.publish("t", numbered(3))
    name = f"127.0.0.1:{broker.tcp_port}"
    with pytest.raises(
        OptionError, match=r"option 'endingOffsets': topic 't' at nsqd .* ends at 3, before 9"
    ):
        spans(table(broker, endingOffsets=json.dumps({"t": {name: 9}})))
    with pytest.raises(OptionError, match="option 'startingOffsets': topic 't' is not at nsqd 'x:1'"):
        spans(table(broker, startingOffsets=json.dumps({"t": {"x:1": 0}})))
    with pytest.raises(NoSuchTopic, match="option 'startingOffsets': no topic 'u' among those"):
        spans(table(broker, startingOffsets=json.dumps({"u": {name: 0}})))
    with pytest.raises(NoSuchTopic, match=f"option 'subscribe': no topic 'u' at {name}"):
        spans(table(broker, subscribe="u"))
    broker.ask("POST", "/topic/delete?topic=t")
    broker.publish("t", numbered(3))
    first = broker.log("t")["first"]
    assert first > 0
    early = {"startingOffsets": json.dumps({"t": {name: 0}})}
    with pytest.raises(DataLost, match=f"begins at {first}, not at 0"):
        spans(table(broker, **early))
    assert spans(table(broker, **early, failOnDataLoss="false")) == [("t", first, first + 3)]
    address = broker.http_address
    broker.kill()
    with pytest.raises(Unreachable, match=f"http://{address} cannot be reached"):
        spans(table(broker))


def test_filters_narrow_nothing_unless_they_are_asked_for(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    reader = table(broker, filterPushdown="false")
    assert spans(filtered(reader, GreaterThan(("offset",), 5))) == [("t", 0, 10)]


def test_positions_are_counted_without_reading(broker: Broker) -> None:
    broker.publish("t", numbered(10))
    reader = table(broker, columns="offset, topic", minPartitions="3")
    parts = reader.partitions()
    broker.kill()
    counted = [row for each in parts for batch in reader.read(each) for row in batch.to_pylist()]
    assert [(row["offset"], row["topic"], row["value"]) for row in counted] == [
        (number, "t", None) for number in range(10)
    ]


def test_a_time_for_one_topic_and_positions_for_assigned_nsqds(broker: Broker, other: Broker) -> None:
    for each in (broker, other):
        each.publish("t", numbered(10))
    other.publish("u", numbered(5))
    times = json.dumps({"t": {other.tcp_address: "2100-01-01"}, "u": "1970-01-01T00:00:00Z"})
    found = spans(table(broker, other, subscribe="t,u", startingTimestamp=times))
    assert found == [("t", 0, 10), ("u", 0, 5)]
    given = {"assign": json.dumps({"t": [other.tcp_address], "u": [other.tcp_address]})}
    starts = json.dumps({"t": {other.tcp_address: 7}})
    reader = table(broker, other, startingOffsets=starts, **given)
    assert spans(reader) == [("t", 7, 10), ("u", 0, 5)]
    assert {row["nsqd"] for row in rows(reader)} == {other.tcp_address}
    wrong = json.dumps({"u": [broker.tcp_address]})
    with pytest.raises(NoSuchTopic, match=f"option 'assign': no topic 'u' at {broker.tcp_address}"):
        table(broker, other, assign=wrong).partitions()
