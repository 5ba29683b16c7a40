"""From record batches to runs of messages for one topic: columns as a whole, never row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsquark import kernel
from nsquark.errors import NsquarkError
from nsquark.names import is_valid_name


class BadRow(NsquarkError):
    """A row that is no message."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column '{column}': {problem}")


class Run(NamedTuple):
    """Bodies for one topic that follow each other: rows `first` to `last` of the buffers."""

    topic: str
    data: Any
    offsets: Any
    width: int
    defers: Any  # int64 by row, or None when there is nothing to defer
    first: int
    last: int

    def mpubs(self, head: bytes, max_bytes: int) -> Iterator[tuple[bytes, int]]:
        """MPUB bodies, or commands with a `head`, and how many messages each has."""
        row = self.first
        while row < self.last:
            laid, following = kernel.lay_mpub(
                head, self.data, self.offsets, self.width, row, self.last, max_bytes
            )
            if following == row:
                raise BadRow("value", "is empty in a row, and NSQ takes no empty messages")
            yield laid, following - row
            row = following

    def dpubs(self, max_bytes: int) -> Iterator[tuple[bytes, int]]:
        """The same as runs of DPUB commands."""
        row, topic = self.first, self.topic.encode()
        while row < self.last:
            laid, following = kernel.lay_dpubs(
                topic, self.data, self.offsets, self.width, self.defers, row, self.last, max_bytes
            )
            if following == row:
                raise BadRow("value", "is empty in a row, and NSQ takes no empty messages")
            yield laid, following - row
            row = following


def runs(batch: pa.RecordBatch, topic: str) -> Iterator[Run]:
    """All messages of a batch, those of a topic in their order; `topic` is for all, unless it is empty."""
    if not batch.num_rows:
        return
    values = batch.column("value")
    if values.null_count:
        raise BadRow("value", f"is null in {values.null_count} rows")
    defers = _defers(batch)
    groups: list[tuple[str, Any]] = [(topic, None)] if topic else _by_topic(batch.column("topic"))
    for name, rows in groups:
        if rows is None:
            yield from _split(name, values, defers)
        else:
            yield from _split(name, values.take(rows), None if defers is None else defers.take(rows))


def _defers(batch: pa.RecordBatch) -> Any:
    """Milliseconds by row, or None when no row has any."""
    if "defer" not in batch.schema.names:
        return None
    defers = pc.fill_null(batch.column("defer").cast(pa.int64()), 0)
    least, most = pc.min_max(defers).as_py().values()
    if least < 0:
        raise BadRow("defer", f"{least} ms is negative")
    return defers if most else None


def _by_topic(column: Any) -> list[tuple[str, Any]]:
    """Each topic and the rows that are its own; None when that is all of them."""
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
    groups, at = [], 0
    for code, name in enumerate(names):
        groups.append((name, order.slice(at, sizes[code])))
        at += sizes[code]
    return groups


def _split(topic: str, values: Any, defers: Any) -> Iterator[Run]:
    """Those that are deferred, and those that are not."""
    if defers is None:
        yield _run(topic, values, None)
        return
    later = pc.greater(defers, 0)
    now = values.filter(pc.invert(later))
    if len(now):
        yield _run(topic, now, None)
    yield _run(topic, values.filter(later), defers.filter(later))


def _run(topic: str, values: Any, defers: Any) -> Run:
    wide = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    _, offsets, data = values.buffers()
    if defers is not None:
        # the kernel counts rows alike in all buffers
        values, defers = pa.concat_arrays([values]), pa.concat_arrays([defers])
        _, offsets, data = values.buffers()
        if values.offset or defers.offset:
            raise AssertionError("filtered columns begin at their buffers' beginning")
    return Run(
        topic,
        memoryview(data) if data is not None else b"",
        memoryview(offsets),
        8 if wide else 4,
        None if defers is None else memoryview(defers.buffers()[1]),
        values.offset,
        values.offset + len(values),
    )


def by_defer(run: Run) -> Iterator[tuple[int, Run]]:
    """A run with one delay each: for who cannot say more than one."""
    if run.defers is None:
        yield 0, run
        return
    delays = pa.Array.from_buffers(pa.int64(), run.last, [None, pa.py_buffer(run.defers)])
    encoded = pc.run_end_encode(delays)
    first = 0
    for delay, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield delay, run._replace(first=first, last=end, defers=None)
        first = end
