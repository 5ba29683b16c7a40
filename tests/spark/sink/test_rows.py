"""Record batches as the rows of single topics, packed as commands, and the rows that are refused."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from nsquark.spark.sink.rows import BadRow, split_by_delay, split_by_topic


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def bodies(rows: Any) -> list[bytes]:
    found = []
    for body, number in rows.pack_mpubs(b"", 1 << 20):
        at = 4
        for _ in range(number):
            (size,) = struct.unpack_from(">i", body, at)
            found.append(body[at + 4 : at + 4 + size])
            at += 4 + size
        assert at == len(body)
    return found


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_a_column_is_packed_wherever_it_begins(kind: pa.DataType) -> None:
    values = pa.array([f"message {number}" for number in range(10)], pa.string()).cast(kind)
    (rows,) = split_by_topic(batch(value=values.slice(3, 4)), "t")
    assert bodies(rows) == [b"message 3", b"message 4", b"message 5", b"message 6"]


def test_messages_of_a_topic_keep_their_order() -> None:
    values = pa.array([b"%d" % number for number in range(1000)])
    topics = pa.array([f"t{number * number % 7}" for number in range(1000)])
    found = {rows.topic: bodies(rows) for rows in split_by_topic(batch(value=values, topic=topics), "")}
    assert found == {
        f"t{rest}": [b"%d" % number for number in range(1000) if number * number % 7 == rest]
        for rest in {number * number % 7 for number in range(7)}
    }


def test_the_option_is_for_all_rows() -> None:
    (rows,) = split_by_topic(batch(value=pa.array([b"x"]), topic=pa.array(["other"])), "t")
    assert rows.topic == "t"


def test_what_is_deferred_is_told_apart() -> None:
    values = pa.array([b"0", b"1", b"2", b"3", b"4"])
    defers = pa.array([None, 5, 0, 7, 7], pa.int32())
    now, later = split_by_topic(batch(value=values, defer=defers), "t")
    assert bodies(now) == [b"0", b"2"]
    (commands,) = [commands for commands, _ in later.pack_dpubs(1 << 20)]
    assert commands == b"".join(
        b"DPUB t %d\n\0\0\0\1%b" % (delay, body) for delay, body in ((5, b"1"), (7, b"3"), (7, b"4"))
    )
    assert [(delay, bodies(part)) for delay, part in split_by_delay(later)] == [
        (5, [b"1"]),
        (7, [b"3", b"4"]),
    ]
    assert [(delay, bodies(part)) for delay, part in split_by_delay(now)] == [(0, [b"0", b"2"])]


def test_bodies_are_split_at_the_size_that_is_asked_for() -> None:
    (rows,) = split_by_topic(batch(value=pa.array([b"x" * 96] * 25)), "t")
    assert [number for _, number in rows.pack_mpubs(b"", 1004)] == [10, 10, 5]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": pa.array([b"x", None])}, "column 'value': is null in 1 rows"),
        ({"value": pa.array([b"x", b"", b"y"])}, "column 'value': is empty in a row"),
        ({"value": pa.array([b"x"]), "topic": pa.array([None], pa.string())}, "column 'topic': is null"),
        ({"value": pa.array([b"x"]), "topic": pa.array(["a b"])}, "column 'topic': 'a b' cannot be the name"),
        ({"value": pa.array([b"x"]), "defer": pa.array([-1])}, "column 'defer': -1 ms is negative"),
    ],
)
def test_a_row_that_is_no_message_is_refused(columns: dict[str, Any], problem: str) -> None:
    found = split_by_topic(batch(**columns), "" if "topic" in columns else "t")
    with pytest.raises(BadRow, match=problem):
        list(map(bodies, found))


def test_no_rows_are_no_messages() -> None:
    assert list(split_by_topic(batch(value=pa.array([], pa.binary())), "t")) == []


def test_a_row_without_a_topic_has_that_of_its_table() -> None:
    columns = {"value": pa.array([b"a", b"b", b"c"]), "topic": pa.array(["u", None, None])}
    found = {rows.topic: bodies(rows) for rows in split_by_topic(batch(**columns), "", "t")}
    assert found == {"u": [b"a"], "t": [b"b", b"c"]}


def test_columns_that_nsqd_fills_must_be_null() -> None:
    columns = {"value": pa.array([b"a", b"b"]), "offset": pa.array([None, None], pa.int64())}
    (rows,) = split_by_topic(batch(**columns), "t")
    assert bodies(rows) == [b"a", b"b"]
    with pytest.raises(BadRow, match="column 'offset': is given in 1 rows, but nsqd gives it"):
        list(split_by_topic(batch(**{**columns, "offset": pa.array([None, 5])}), "t"))
