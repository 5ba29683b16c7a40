"""Batches of the log as record batches: their columns, and how many bytes go to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from nsquark.kernel import BatchWriter
from nsquark.spark.columns import SCHEMA
from nsquark.spark.source.decode import Decoder
from tests.spark.broker import numbered


def log_of(count: int, position: int) -> bytes:
    writer = BatchWriter(position, 0xABC)
    writer.add_bodies(numbered(count, position), 1_700_000_000_123_456_789, 0)
    return bytes(writer.take())


def sent(batch: pa.RecordBatch) -> int:
    """The bytes that go to Spark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return int(sink.getvalue().size)


def test_a_short_batch_after_a_long_one_is_short() -> None:
    decoder = Decoder(SCHEMA, "events", "127.0.0.1:4150")
    long = decoder.decode(log_of(1000, 0), 0, 1000)
    short = decoder.decode(log_of(10, 1000), 1000, 10)
    longer = decoder.decode(log_of(2000, 1010), 1010, 2000)
    for batch, count, position in ((long, 1000, 0), (short, 10, 1000), (longer, 2000, 1010)):
        fresh = Decoder(SCHEMA, "events", "127.0.0.1:4150").decode(log_of(count, position), position, count)
        batch.validate(full=True)
        assert batch.equals(fresh)
        assert sent(batch) < sent(fresh) + 300  # but for padding
        assert batch.column("value").to_pylist() == numbered(count, position)
        assert batch.column("offset").to_pylist() == list(range(position, position + count))
        assert set(batch.column("topic").to_pylist()) == {"events"}


def test_what_is_no_log_is_refused() -> None:
    with pytest.raises(ValueError, match="no message at 0"):
        Decoder(SCHEMA, "t", "n").decode(bytes(1000), 0, 3)


def test_columns_that_are_not_wanted_are_null() -> None:
    batch = Decoder(SCHEMA, "t", "n", ("offset", "id")).decode(log_of(5, 7), 7, 5)
    batch.validate(full=True)
    assert batch.column("offset").to_pylist() == [7, 8, 9, 10, 11]
    assert batch.column("id").null_count == 0
    assert all(batch.column(name).null_count == 5 for name in ("value", "topic", "nsqd", "timestamp"))


def test_rows_of_positions_need_no_messages() -> None:
    schema = StructType([field for field in SCHEMA.fields if field.name in ("topic", "nsqd", "offset")])
    decoder = Decoder(schema, "t", "n")
    assert not decoder.needs_messages
    assert Decoder(SCHEMA, "t", "n").needs_messages
    assert not Decoder(SCHEMA, "t", "n", ("offset",)).needs_messages
    assert decoder.count(7, 5).equals(decoder.decode(log_of(5, 7), 7, 5))
