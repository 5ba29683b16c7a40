"""Batches of the log as record batches: their columns, and how many bytes go to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

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
