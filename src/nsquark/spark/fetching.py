"""A span of a log from its nsqd, as record batches: what a task does.

The next piece is asked for before the last one is decoded and handed on, so that nsqd and network work while
Spark does. Whatever breaks is taken up again at the position that was reached: a position is one message for
ever, so nothing comes twice.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pyarrow as pa
from pyspark.sql.types import StructType

from .decode import Decoder
from .errors import BadAnswer, DataLost, Refused, Unreachable
from .http import Exchange
from .offsets import Span
from .options import Fetching
from .partitions import LogPartition

logger = logging.getLogger(__name__)

# Without an index, which would have to be made and sent: decoding is a walk over all of it in any case.
#   0       4       8          16      24       32
#   | NQR1  | u32   | u64      | u64   | u64    | ...
#   | magic | count | position | epoch | length | batches
_HEAD = struct.Struct(">4sIQQQ")
_MAX_ANSWER = 1 << 31  # Arrow counts the bytes of a column in 31 bits


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
            target = self._target(self._at)
            exchange.ask("GET", target)
            while self._at < self._span.end:
                response = exchange.answer()
                if response.status != 200:
                    raise exchange.refusal(target, response)
                head = bytearray(_HEAD.size)
                exchange.read_into(response, memoryview(head))
                magic, count, position, _, length = _HEAD.unpack(head)
                if magic != b"NQR1" or position != self._at or not count or length > _MAX_ANSWER:
                    raise BadAnswer(f"{self._url}/log/read: not an answer of nsqd")
                if len(self._buffer) < length:
                    self._buffer = bytearray(length)
                batches = memoryview(self._buffer)[:length]
                exchange.read_into(response, batches)
                exchange.read(response)
                self._at += count
                if self._at < self._span.end:
                    target = self._target(self._at)
                    exchange.ask("GET", target)
                try:
                    batch = self._decoder.decode(batches, position, count)
                except ValueError as error:
                    raise BadAnswer(f"{self._url}/log/read: not an answer of nsqd: {error}") from None
                yield batch

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
