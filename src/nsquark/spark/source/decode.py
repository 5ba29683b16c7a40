"""Batches of the log as Arrow record batches.

The kernel lays the messages of a batch out as column buffers, and the decoder makes columns of the buffers.
No Python object is made for a single message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from nsquark import kernel
from nsquark.kernel import Buffer

from ..columns import SCHEMA


class Decoder:
    """Makes record batches of one schema from the messages of one topic at one nsqd.

    Of the schema's columns those among `columns` are filled, and the others are null.
    """

    def __init__(
        self, schema: StructType, topic: str, nsqd: str, columns: Collection[str] = tuple(SCHEMA.names)
    ) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = columns
        names = set(schema.fieldNames()).intersection(columns)
        self._wanted = ("value" in names, "timestamp" in names, "id" in names)
        self._constants = {"topic": topic.encode(), "nsqd": nsqd.encode()}
        # Buffers that do not depend on the messages. They are as long as the longest batch so far needs, and
        # shorter batches use their beginning.
        self._rows = -1
        self._reusable: dict[str, list[Buffer]] = {}

    @property
    def needs_messages(self) -> bool:
        """Whether a column tells more of a message than its position."""
        return any(self._wanted)

    def decode(self, data: Buffer, position: int, count: int) -> pa.RecordBatch:
        """The `count` messages from `position` on, which must be in `data`.

        Raises ValueError if they are not, or if `data` does not hold batches of the log.
        """
        return self._record_batch(
            position, count, *kernel.decode_batches(data, position, count, *self._wanted)
        )

    def count(self, position: int, count: int) -> pa.RecordBatch:
        """Rows for `count` positions, if no column needs the messages there."""
        return self._record_batch(position, count, b"", b"", b"", b"")

    def _record_batch(
        self, position: int, count: int, offsets: Buffer, bodies: Buffer, times: Buffer, ids: Buffer
    ) -> pa.RecordBatch:
        if count > self._rows:
            self._rows, self._reusable = count, {}
        buffers: dict[str, Callable[[], list[Buffer]]] = {
            # A body that is not UTF-8 stays as it is in a STRING column, as with CAST(value AS STRING).
            "value": lambda: [offsets, bodies],
            "topic": lambda: self._constant("topic"),
            "nsqd": lambda: self._constant("nsqd"),
            "offset": lambda: [kernel.count_column(position, count)],
            "timestamp": lambda: [times],
            "id": lambda: [*self._reused("id", lambda: [kernel.stride_column(16, self._rows)]), ids],
        }
        arrays = [
            pa.Array.from_buffers(
                field.type,
                count,
                [None, *(pa.py_buffer(each) for each in buffers[field.name]())],
                null_count=0,
            )
            if field.name in self._columns
            else pa.nulls(count, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str) -> list[Buffer]:
        text, rows = self._constants[name], self._rows
        return self._reused(name, lambda: [kernel.stride_column(len(text), rows), text * rows])

    def _reused(self, name: str, make: Callable[[], list[Buffer]]) -> list[Buffer]:
        if name not in self._reusable:
            self._reusable[name] = make()
        return self._reusable[name]
