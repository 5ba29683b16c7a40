"""From record batches to the messages of one topic at a time, column by column and never row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsquark import kernel
from nsquark.errors import NsquarkError
from nsquark.names import is_valid_name

from ..columns import COLUMNS_OF_NSQD


class BadRow(NsquarkError):
    """A row cannot be published as a message."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column '{column}': {problem}")


class TopicRows(NamedTuple):
    """Rows for one topic: rows `first` to `last` of the Arrow buffers that hold their values."""

    topic: str
    data: Any
    offsets: Any
    width: int  # bytes of an offset
    defers: Any  # int64 by row, or None if no row is deferred
    first: int
    last: int

    def pack_mpubs(self, head: bytes, max_bytes: int) -> Iterator[tuple[bytes, int]]:
        """MPUB bodies, each behind `head`, and how many messages each of them has."""
        return self._pack(
            lambda row: kernel.lay_mpub(head, self.data, self.offsets, self.width, row, self.last, max_bytes)
        )

    def pack_dpubs(self, max_bytes: int) -> Iterator[tuple[bytes, int]]:
        """Runs of DPUB commands, and how many messages each of them has."""
        topic = self.topic.encode()
        return self._pack(
            lambda row: kernel.lay_dpubs(
                topic, self.data, self.offsets, self.width, self.defers, row, self.last, max_bytes
            )
        )

    def _pack(self, lay: Callable[[int], tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
        """`lay` packs the rows from a row on, and tells the first row that it has not packed."""
        row = self.first
        while row < self.last:
            packed, following = lay(row)
            if following == row:
                raise BadRow("value", "is empty in a row, and NSQ takes no empty messages")
            yield packed, following - row
            row = following


def split_by_topic(batch: pa.RecordBatch, topic: str, default_topic: str = "") -> Iterator[TopicRows]:
    """All rows of a batch. The rows of a topic keep their order; rows with and without delay are separate.

    A `topic` that is not empty is the topic of all rows, and a `default_topic` that of rows whose topic is
    null. Raises BadRow.
    """
    if not batch.num_rows:
        return
    _check_columns_of_nsqd(batch)
    values = batch.column("value")
    if values.null_count:
        raise BadRow("value", f"is null in {values.null_count} rows")
    defers = _defers(batch)
    groups: list[tuple[str, Any]] = (
        [(topic, None)] if topic else _group_by_topic(batch.column("topic"), default_topic)
    )
    for name, rows in groups:
        if rows is None:
            yield from _split_deferred(name, values, defers)
        else:
            yield from _split_deferred(name, values.take(rows), None if defers is None else defers.take(rows))


def _defers(batch: pa.RecordBatch) -> Any:
    """The delay of each row in milliseconds, or None if no row has one."""
    if "defer" not in batch.schema.names:
        return None
    defers = pc.fill_null(batch.column("defer").cast(pa.int64()), 0)
    least, most = pc.min_max(defers).as_py().values()
    if least < 0:
        raise BadRow("defer", f"{least} ms is negative")
    return defers if most else None


def _check_columns_of_nsqd(batch: pa.RecordBatch) -> None:
    """Columns that only nsqd fills are there if rows are inserted into a table, and must be null."""
    for name in COLUMNS_OF_NSQD:
        if name in batch.schema.names:
            given = batch.num_rows - batch.column(name).null_count
            if given:
                raise BadRow(name, f"is given in {given} rows, but nsqd gives it to a message; leave it out")


def _group_by_topic(column: Any, default_topic: str) -> list[tuple[str, Any]]:
    """Each topic and the indices of its rows; None in place of indices if all rows have the same topic."""
    if column.null_count and default_topic:
        column = pc.fill_null(column, default_topic)
    if column.null_count:
        raise BadRow("topic", f"is null in {column.null_count} rows")
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for name in names:
        if not is_valid_name(name):
            raise BadRow("topic", f"{name!r} cannot be the name of a topic")
    if len(names) == 1:
        return [(names[0], None)]
    order = pc.sort_indices(encoded.indices)  # stable
    counts = pc.value_counts(encoded.indices)
    sizes = {each["values"]: each["counts"] for each in counts.to_pylist()}
    groups, start = [], 0
    for code, name in enumerate(names):
        groups.append((name, order.slice(start, sizes[code])))
        start += sizes[code]
    return groups


def _split_deferred(topic: str, values: Any, defers: Any) -> Iterator[TopicRows]:
    if defers is None:
        yield _topic_rows(topic, values, None)
        return
    deferred = pc.greater(defers, 0)
    at_once = values.filter(pc.invert(deferred))
    if len(at_once):
        yield _topic_rows(topic, at_once, None)
    yield _topic_rows(topic, values.filter(deferred), defers.filter(deferred))


def _topic_rows(topic: str, values: Any, defers: Any) -> TopicRows:
    wide = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    _, offsets, data = values.buffers()
    if defers is not None:
        # The kernel takes a row to have the same number in all buffers.
        values, defers = pa.concat_arrays([values]), pa.concat_arrays([defers])
        _, offsets, data = values.buffers()
        if values.offset or defers.offset:
            raise AssertionError("filtered columns begin at their buffers' beginning")
    return TopicRows(
        topic,
        memoryview(data) if data is not None else b"",
        memoryview(offsets),
        8 if wide else 4,
        None if defers is None else memoryview(defers.buffers()[1]),
        values.offset,
        values.offset + len(values),
    )


def split_by_delay(rows: TopicRows) -> Iterator[tuple[int, TopicRows]]:
    """Runs of rows with the same delay, in order. Staged publishing takes one delay per request."""
    if rows.defers is None:
        yield 0, rows
        return
    delays = pa.Array.from_buffers(pa.int64(), rows.last, [None, pa.py_buffer(rows.defers)])
    encoded = pc.run_end_encode(delays)
    first = 0
    for delay, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield delay, rows._replace(first=first, last=end, defers=None)
        first = end
