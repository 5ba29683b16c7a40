"""How a limit is shared among logs, by rows and by bytes, and how long a small batch waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from nsquark.spark.source.admission import MinimumRows, admit, default_limit, share
from nsquark.spark.source.directory import Node
from nsquark.spark.source.logs import LogRange
from nsquark.spark.source.options import StreamOptions, parse_stream_options

KEYS = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))
A, B = ("t", "a"), ("t", "b")


def options(**changes: str) -> StreamOptions:
    return parse_stream_options(
        {"nsqd.http.addresses": "h:4151", "subscribe": "t", "channel": "c", **changes}
    )


@given(st.dictionaries(KEYS, st.integers(0, 1000)), st.integers(1, 2000))
def test_a_limit_is_kept_and_used_up(counts: dict[tuple[str, str], int], limit: int) -> None:
    shares = share(counts, limit)
    assert sum(shares.values()) == min(limit, sum(counts.values()))
    assert all(0 <= shares[key] <= counts[key] for key in counts)


def test_a_small_log_is_not_kept_waiting_by_a_large_one() -> None:
    assert share({("t", "a"): 1_000_000, ("t", "b"): 1}, 10) == {("t", "a"): 9, ("t", "b"): 1}


def test_bytes_are_counted_by_the_average_of_each_log() -> None:
    node = Node("h:4150", "http://h:4151")
    logs = {
        A: LogRange("t", "a", node, "e", 0, 100, 1000),  # 10 bytes a message
        B: LogRange("t", "b", node, "e", 50, 100, 5000),  # 100 bytes a message
    }
    counts = {A: 50, B: 50}
    assert admit(counts, logs, ReadMaxBytes(5500)) == counts
    assert admit(counts, logs, ReadMaxBytes(550)) == {A: 5, B: 5}
    assert sum(admit(counts, logs, ReadMaxBytes(1)).values()) == 1
    assert admit(counts, logs, ReadMaxRows(4)) == {A: 2, B: 2}
    assert admit(counts, logs, ReadAllAvailable()) == counts


def test_the_default_limit_is_that_of_the_options() -> None:
    assert default_limit(options()) == ReadAllAvailable()
    assert default_limit(options(maxOffsetsPerTrigger="5")) == ReadMaxRows(5)
    assert default_limit(options(maxBytesPerTrigger="5")) == ReadMaxBytes(5)


def test_only_the_first_batch_may_be_small_at_once() -> None:
    minimum = MinimumRows(options(minOffsetsPerTrigger="3", maxTriggerDelay="1h"))
    assert [minimum.must_wait(rows) for rows in (1, 1, 2, 3, 2)] == [False, True, True, False, True]
    assert not MinimumRows(options(minOffsetsPerTrigger="3", maxTriggerDelay="0ms")).must_wait(1)
