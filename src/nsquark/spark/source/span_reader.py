"""A span of a log from its nsqd, as record batches: what a task does.

An answer is decoded and handed on piece by piece, and the next one is asked for before its last piece is, so
that nsqd and network work while Spark does. Whatever breaks is taken up again at the position that was
reached: a position is one message for ever, so nothing comes twice.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from urllib.parse import urlencode

import pyarrow as pa
from pyspark.sql.types import StructType

from nsquark import kernel

from ..errors import BadAnswer, DataLost, Refused, Unreachable
from ..http import Exchange
from ..options import Fetching
from .decode import Decoder
from .offsets import Span
from .partitions import LogPartition

logger = logging.getLogger(__name__)

# Without an index, which would have to be made and sent: decoding is a walk over all of it in any case.
#   0       4       8          16      24       32
#   | NQR1  | u32   | u64      | u64   | u64    | ...
#   | magic | count | position | epoch | length | batches
_HEAD = struct.Struct(">4sIQQQ")
_MAX_BATCH = 1 << 31  # Arrow counts the bytes of a column in 31 bits
# What is decoded at once: it is still in the processor's cache when it is decoded and handed on.
PIECE = 2 << 20


def read_span(partition: LogPartition, schema: StructType, fetching: Fetching) -> Iterator[pa.RecordBatch]:
    """All rows of a span. Raises Unreachable, Refused, BadAnswer, or DataLost."""
    return _SpanReader(partition, schema, fetching).batches()


class _SpanReader:
    def __init__(self, partition: LogPartition, schema: StructType, fetching: Fetching) -> None:
        self._span = partition.span
        self._url = partition.url
        self._fetching = fetching
        self._decoder = Decoder(schema, partition.span.topic, partition.span.nsqd)
        self._at = partition.span.start
        self._buffer = bytearray()

    def batches(self) -> Iterator[pa.RecordBatch]:
        failures = 0
        while self._at < self._span.end:
            reached = self._at
            try:
                yield from self._exchange()
            except Unreachable as error:
                # a span that gets on has not failed: an nsqd may restart as often as it likes
                failures = 1 if self._at > reached else failures + 1
                if failures > self._fetching.retries:
                    raise
                logger.warning("%s; trying again", error)
                time.sleep(self._fetching.retry_interval * 2 ** (failures - 1))
            except Refused as error:
                self._refused(error)

    def _exchange(self) -> Iterator[pa.RecordBatch]:
        """Read on one connection, as far as it goes."""
        with Exchange(self._url, self._fetching.access) as exchange:
            exchange.ask("GET", self._target(self._at))
            while self._at < self._span.end:
                response = exchange.answer()
                if response.status != 200:
                    raise exchange.refusal(self._target(self._at), response)
                yield from self._answer(exchange, response)

    def _answer(self, exchange: Exchange, response: HTTPResponse) -> Iterator[pa.RecordBatch]:
        """The rows of one answer; the next one is asked for as soon as this is there."""
        head = bytearray(_HEAD.size)
        exchange.read_into(response, memoryview(head))
        magic, count, position, _, coming = _HEAD.unpack(head)
        if magic != b"NQR1" or position != self._at or not count:
            raise self._bad()
        stop, filled = self._at + count, 0
        self._make_room(min(coming, PIECE))
        while self._at < stop:
            more = min(coming, len(self._buffer) - filled)
            exchange.read_into(response, memoryview(self._buffer)[filled : filled + more])
            filled, coming = filled + more, coming - more
            if more and not coming:
                exchange.read(response)
                if stop < self._span.end:
                    exchange.ask("GET", self._target(stop))
            whole, needed, _, last = kernel.scan_batches(self._buffer, 0, filled, False, filled)
            if last is None:
                if not filled < needed <= min(filled + coming, _MAX_BATCH):
                    raise self._bad()
                self._make_room(needed)
                continue
            number = min(last[3] + last[2], stop) - self._at
            try:
                batch = self._decoder.decode(memoryview(self._buffer)[:whole], self._at, number)
            except ValueError as error:
                raise self._bad(error) from None
            self._at += number
            yield batch
            filled -= whole
            self._buffer[:filled] = self._buffer[whole : whole + filled]
        if coming or filled:
            raise self._bad("there is more of it")

    def _make_room(self, size: int) -> None:
        self._buffer += bytes(max(0, size - len(self._buffer)))

    def _bad(self, problem: object = "") -> BadAnswer:
        return BadAnswer(f"{self._url}/log/read: not an answer of nsqd" + (f": {problem}" if problem else ""))

    def _target(self, position: int) -> str:
        span = self._span
        query = {
            "topic": span.topic,
            "from": position,
            "to": span.end,
            "max_bytes": self._fetching.max_bytes,
            "epoch": span.epoch,
            "index": 0,
        }
        return f"/log/read?{urlencode(query)}"

    def _refused(self, error: Refused) -> None:
        """Go on behind what is lost, if the query may. Raises DataLost or what was refused."""
        if error.message not in ("POSITION_GONE", "EPOCH_CHANGED", "POSITION_NOT_REACHED", "TOPIC_NOT_FOUND"):
            raise error
        lost = data_lost(self._span._replace(start=self._at), error.details)
        if self._fetching.fail_on_data_loss:
            raise lost
        logger.warning("%s", lost)
        first = error.details.get("first")
        if error.message == "POSITION_GONE" and isinstance(first, int) and first > self._at:
            self._at = min(first, self._span.end)
        else:
            self._at = self._span.end


def data_lost(span: Span, bounds: dict[str, object]) -> DataLost:
    """Says what was wanted and what there is."""
    wanted = f"[{span.start}, {span.end})" if span.start < span.end else f"{span.start}"
    there = f"[{bounds.get('first', '?')}, {bounds.get('next', '?')})" if "first" in bounds else "nothing"
    epoch = bounds.get("epoch")
    another = f" in another log ({epoch}, not {span.epoch})" if epoch not in (None, span.epoch) else ""
    return DataLost(
        f"topic {span.topic!r} at nsqd {span.nsqd}: offsets {wanted} are to be read, "
        f"but the log has {there}{another}; "
        "with option 'failOnDataLoss' = false the query goes on with what is there"
    )
