"""Pieces of log into Arrow: the kernel lays out buffers, here they become columns. No row is seen alone."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from nsquark import kernel
from nsquark.kernel import Buffer


class Decoder:
    """Makes record batches of one schema from the messages of one topic at one nsqd."""

    def __init__(self, schema: StructType, topic: str, nsqd: str) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        names = set(schema.fieldNames())
        self._wanted = ("value" in names, "timestamp" in names, "id" in names)
        self._texts = {"topic": topic.encode(), "nsqd": nsqd.encode()}
        self._longest = -1
        self._same: dict[str, list[Buffer]] = {}  # what is the same in every batch, for the longest so far

    def decode(self, data: Buffer, position: int, count: int) -> pa.RecordBatch:
        """So many messages from this position on, which batches of the log hold. Raises ValueError."""
        offsets, bodies, times, ids = kernel.decode_batches(data, position, count, *self._wanted)
        if count > self._longest:
            self._longest, self._same = count, {}
        columns: dict[str, Callable[[], list[Buffer]]] = {
            # Bodies that are no UTF-8 are passed on as they are, as CAST(value AS STRING) does.
            "value": lambda: [offsets, bodies],
            "topic": lambda: self._constant("topic"),
            "nsqd": lambda: self._constant("nsqd"),
            "offset": lambda: [kernel.count_column(position, count)],
            "timestamp": lambda: [times],
            "id": lambda: [*self._kept("id", lambda: [kernel.stride_column(16, self._longest)]), ids],
        }
        arrays = [
            pa.Array.from_buffers(
                field.type,
                count,
                [None, *(pa.py_buffer(each) for each in columns[field.name]())],
                null_count=0,
            )
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str) -> list[Buffer]:
        text, rows = self._texts[name], self._longest
        return self._kept(name, lambda: [kernel.stride_column(len(text), rows), text * rows])

    def _kept(self, name: str, make: Callable[[], list[Buffer]]) -> list[Buffer]:
        if name not in self._same:
            self._same[name] = make()
        return self._same[name]
