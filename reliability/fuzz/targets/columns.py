"""Answers to /log/read as Spark's tasks decode them into Arrow columns: whole, and with a tiny buffer."""

from __future__ import annotations

import struct
from http.client import HTTPResponse
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from nsquark import kernel
from nsquark.http.client.blocking import Access
from nsquark.kernel.pure import HEADER, MAGIC, BatchWriter
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import BadResponse, Unreachable
from nsquark.spark.http import Exchange
from nsquark.spark.source import span_reader
from nsquark.spark.source.local_files import CONTENT_TYPE, LocalReadFailed
from nsquark.spark.source.offsets import Span
from nsquark.spark.source.options import FetchOptions
from nsquark.spark.source.partitions import LogPartition
from reliability.fuzz.target import Target, require_same

HEAD = struct.Struct(">4sIQQQ")
START, END = 3, 40
_OPTIONS = FetchOptions(frozenset(SCHEMA.names), Access(), 1 << 20, 0, 0.0, True)


class _Answer:
    """The part of an exchange that reads the body of one answer, which is these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read_into(self, _response: object, buffer: memoryview) -> None:
        if len(buffer) > len(self._data):
            raise Unreachable("the answer broke off")
        buffer[:] = self._data[: len(buffer)]
        self._data = self._data[len(buffer) :]

    def read(self, _response: object) -> bytes:
        rest, self._data = bytes(self._data), self._data[:0]
        return rest

    def send(self, _request: object) -> None:
        pass


def _rows(data: bytes, piece: int) -> tuple[list[Any], str]:
    """The rows of the answer, and the error that ended it."""
    span = Span("t", "id", "nsqd:4150", "77", START, END)
    reader = span_reader._SpanReader(LogPartition(span, "http://h:1"), SCHEMA, _OPTIONS)
    kind = {"Content-Type": CONTENT_TYPE} if data.startswith(b"{") else {}  # names of files, or batches
    answer, response = cast(Exchange, _Answer(data)), cast(HTTPResponse, SimpleNamespace(headers=kind))
    rows: list[Any] = []
    with mock.patch.object(span_reader, "PIECE", piece):
        try:
            for batch in reader._read_response(answer, response):
                columns = [_values(batch.column(name)) for name in batch.schema.names]
                rows += zip(*columns, strict=True)
        except (BadResponse, LocalReadFailed, Unreachable) as error:
            return rows, type(error).__name__
    return rows, ""


def _values(column: Any) -> list[Any]:
    """The values, of a kind that any bytes can be: only nsqd sees to it that an id is UTF-8."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    column.validate(full=True)
    return list(column.to_pylist())


def run(data: bytes) -> object:
    whole, error = _rows(data, 1 << 20)
    pieces, other = _rows(data, 100)
    require_same("whether it is broken, from a small buffer", bool(error), bool(other))
    # Where the answer turns out to be broken, fewer rows may have been handed over from a large buffer.
    require_same("a small buffer", whole, pieces[: len(whole)] if error else pieces)
    return whole, bool(error)


def repair(data: bytes) -> bytes:
    """Make the head tell the length of what follows."""
    if len(data) < HEAD.size:
        return data
    return data[:24] + (len(data) - HEAD.size).to_bytes(8, "big") + data[HEAD.size :]


def _answer(batches: bytes, count: int, position: int = START) -> bytes:
    return HEAD.pack(b"NQR1", count, position, 77, len(batches)) + batches


def _batches(first: int, *commits: int) -> bytes:
    writer = BatchWriter(first, 100 + first)
    data = b""
    for count in commits:
        writer.add_bodies([b"\xff body %d" % number for number in range(count)], 1_700_000_000_123_456_789, 0)
        data += writer.take()
    return data


def seeds() -> list[bytes]:
    return [
        _answer(_batches(3, 2, 1, 4), 7),
        _answer(_batches(0, 5, 3), 4),
        _answer(_batches(0, 5, 3), 5),
        _answer(_batches(3, 10), 10)[:-5],
        _answer(_batches(3, 2, 1) + _batches(9, 2), 5),
        _answer(_batches(3, 3) + b"more", 3),
        _answer(b"", 0),
        _answer(MAGIC + kernel.crc32c(b"", 0, 0).to_bytes(4, "big") + bytes(HEADER.size), 1),
    ]


TARGET = Target(
    name="columns",
    run=run,
    seeds=seeds,
    modules=("nsquark.spark.source.span_reader", "nsquark.spark.source.decode"),
    words=(
        MAGIC,
        b"NQR1",
        _batches(10, 1),
        b"\0\0\0\1",
        b"\0\0\0\x1e",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    ),
    repair=repair,
    max_length=1000,
)
