"""Reading one span of a log from its nsqd, as record batches. This is what a task does.

A response is decoded and handed to Spark piece by piece. The next request goes out before the last piece of a
response is handed over, so that nsqd and the network work while Spark does. After a failure the reader goes
on at the position it has reached. A position stands for the same message for ever, so no message comes twice.

Where the task runs on nsqd's machine, a response may name files in place of their bytes (`local_files.py`).
What is only in nsqd's archive the task may read there (`archived_object.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from http.client import HTTPResponse

import pyarrow as pa
from pyspark.sql.types import StructType

from nsquark import kernel
from nsquark.http.client.protocol import NotJson, parse_json
from nsquark.kernel.pure import HEADER
from nsquark.wire import log_answer

from ..errors import BadResponse, DataLost, RequestRefused, Unreachable
from ..http import Exchange, Request
from . import archived_object
from .archived_object import ArchivedObject, ArchiveReadFailed, asking_for_objects, parse_object
from .decode import Decoder
from .local_files import CONTENT_TYPE, LocalFiles, LocalReadFailed, asking_for_files, parse_files
from .logs import reading_through
from .offsets import Span
from .options import FetchOptions
from .partitions import LogPartition

logger = logging.getLogger(__name__)

_MAX_BATCH = 1 << 31  # Arrow counts the bytes of a column in 31 bits
# How many bytes to decode at once: few enough to be in the processor's cache still when Spark gets them.
PIECE = 2 << 20
_COUNTED_ROWS = 1 << 16  # in a batch of rows that are made of positions


def count_span(
    partition: LogPartition, schema: StructType, options: FetchOptions
) -> Iterator[pa.RecordBatch]:
    """All rows of a span as `read_span` gives them, without asking nsqd where no column needs a message."""
    span = partition.span
    decoder = Decoder(schema, span.topic, span.nsqd, options.columns)
    if decoder.needs_messages:
        yield from read_span(partition, schema, options)
        return
    for position in range(span.start, span.end, _COUNTED_ROWS):
        yield decoder.count(position, min(_COUNTED_ROWS, span.end - position))


def read_span(partition: LogPartition, schema: StructType, options: FetchOptions) -> Iterator[pa.RecordBatch]:
    """All rows of a span. Raises Unreachable, RequestRefused, BadResponse, or DataLost."""
    return _SpanReader(partition, schema, options).read()


class _SentBytes:
    """The body of a response, behind its head."""

    exact = True  # it has the messages that are wanted, and no batch more

    def __init__(self, exchange: Exchange, response: HTTPResponse, length: int) -> None:
        self._exchange = exchange
        self._response = response
        self._closed = False
        self.unread = length

    def read_into(self, buffer: memoryview) -> None:
        """Fill the whole buffer. Raises Unreachable."""
        self._exchange.read_into(self._response, buffer)
        self.unread -= len(buffer)

    def close(self) -> None:
        """Read the end of the response, if all bytes before it are read, so that a request may follow."""
        if not self.unread and not self._closed:
            self._closed = True
            self._exchange.read(self._response)


class _SpanReader:
    def __init__(self, partition: LogPartition, schema: StructType, options: FetchOptions) -> None:
        self._span = partition.span
        self._url = partition.url
        self._options = options
        self._decoder = Decoder(schema, partition.span.topic, partition.span.nsqd, options.columns)
        self._position = partition.span.start  # the next message to hand to Spark
        self._buffer = bytearray()
        self._local = asking_for_files(partition.url)
        self._archive = asking_for_objects(options.archive_url)

    def read(self) -> Iterator[pa.RecordBatch]:
        failures = 0
        while self._position < self._span.end:
            before = self._position
            try:
                yield from self._read_connection()
            except Unreachable as error:
                # Progress resets the count: an nsqd may restart any number of times during one span.
                failures = 1 if self._position > before else failures + 1
                if failures > self._options.retries:
                    raise
                logger.warning("%s; trying again", error)
                time.sleep(self._options.retry_interval * 2 ** (failures - 1))
            except LocalReadFailed as error:
                logger.info("%s; the rest of the span comes from %s", error, self._url)
                self._local = {}
            except ArchiveReadFailed as error:
                logger.warning("%s; the rest of the span comes from %s", error, self._url)
                self._archive = {}
            except RequestRefused as error:
                self._skip_lost(error)

    def _read_connection(self) -> Iterator[pa.RecordBatch]:
        """Read over one connection until the end of the span, or until the connection fails."""
        with Exchange(self._url, self._options.access) as exchange:
            exchange.send(self._request(self._position))
            while self._position < self._span.end:
                response = exchange.response()
                if response.status != 200:
                    refusal = exchange.refusal(self._request(self._position), response)
                    if refusal.message == "ARCHIVE_UNAVAILABLE":  # it may be soon, as an nsqd that is away
                        raise Unreachable(f"{refusal}: {refusal.details.get('reason', '')}")
                    raise refusal
                yield from self._read_response(exchange, response)

    def _read_response(self, exchange: Exchange, response: HTTPResponse) -> Iterator[pa.RecordBatch]:
        """The rows of one response. Sends the next request as soon as all bytes of this one are here."""
        body: _SentBytes | LocalFiles | ArchivedObject
        if response.headers.get("Content-Type") == archived_object.CONTENT_TYPE:
            try:
                count, position, part = parse_object(
                    parse_json(self._url, exchange.read(response)), self._options.archive_url
                )
            except (ValueError, NotJson) as error:
                raise self._bad_response(error) from None
            body = ArchivedObject(part)
        elif response.headers.get("Content-Type") == CONTENT_TYPE:
            try:
                count, position, files = parse_files(parse_json(self._url, exchange.read(response)))
            except (ValueError, NotJson) as error:
                raise self._bad_response(error) from None
            body = LocalFiles(self._url, files)
        else:
            head = bytearray(log_answer.SIZE)
            exchange.read_into(response, memoryview(head))
            try:
                count, position, _, length = log_answer.parse_head(head)
            except log_answer.NoLogAnswer:
                raise self._bad_response() from None
            body = _SentBytes(exchange, response, length)
        if position != self._position or not 0 < count <= self._span.end - position:
            raise self._bad_response()
        stop = position + count
        try:
            yield from self._read_batches(exchange, body, stop)
        finally:
            body.close()
        if not body.exact and stop < self._span.end:
            exchange.send(self._request(stop))

    def _read_batches(
        self, exchange: Exchange, body: _SentBytes | LocalFiles | ArchivedObject, stop: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows before the position `stop`, which all bytes of `body` hold."""
        filled = 0
        self._grow_buffer(min(body.unread, PIECE))
        while self._position < stop:
            more = min(body.unread, len(self._buffer) - filled)
            body.read_into(memoryview(self._buffer)[filled : filled + more])
            filled += more
            if more and not body.unread and body.exact:
                body.close()
                if stop < self._span.end:
                    exchange.send(self._request(stop))
            # nsqd sends files without looking at them, so this is where the CRC of each batch is checked.
            whole, needed, _, last = kernel.scan_batches(self._buffer, 0, filled, True, filled)
            if not needed:
                raise self._wrong(body, "a batch is damaged")
            if last is None:  # the buffer does not hold one whole batch
                if not filled < needed <= min(filled + body.unread, _MAX_BATCH):
                    raise self._wrong(body)
                # Not at once: a length that is damaged may be anything, and so may what the head says.
                self._grow_buffer(min(needed, 2 * len(self._buffer)))
                continue
            if last[3] >= stop and body.exact:
                raise self._wrong(body, "there is more of it")
            rows = min(last[3] + last[2], stop) - self._position
            if rows > 0 or body.exact:
                begin = 0 if body.exact else _first_batch(self._buffer, whole, self._position)
                try:
                    data = memoryview(self._buffer)[begin:whole]
                    batch = self._decoder.decode(data, self._position, rows)
                except ValueError as error:
                    raise self._wrong(body, error) from None
                self._position += rows
                yield batch
            filled -= whole
            self._buffer[:filled] = self._buffer[whole : whole + filled]
        if (body.unread or filled) and body.exact:
            raise self._wrong(body, "there is more of it")

    def _grow_buffer(self, size: int) -> None:
        # A new buffer: the error of an answer that broke off may still hold a view of the old one, which
        # therefore cannot be resized.
        if size > len(self._buffer):
            self._buffer = self._buffer + bytes(size - len(self._buffer))

    def _wrong(self, body: _SentBytes | LocalFiles | ArchivedObject, problem: object = "") -> Exception:
        """The error for bytes that are not what nsqd has said."""
        if isinstance(body, ArchivedObject):
            return body.failed(str(problem) or "it is cut short")
        return self._bad_response(problem)

    def _bad_response(self, problem: object = "") -> BadResponse:
        return BadResponse(
            f"{self._url}/log/read: not an answer of nsqd" + (f": {problem}" if problem else "")
        )

    def _request(self, position: int) -> Request:
        span = self._span
        query = {
            "topic": span.topic,
            "from": position,
            "to": span.end,
            "max_bytes": self._options.max_bytes,
            "epoch": span.epoch,
            "index": 0,
            **self._local,
            **self._archive,
            **reading_through(self._options.through),
        }
        return Request("/log/read", query)

    def _skip_lost(self, error: RequestRefused) -> None:
        """Go on behind the messages that are lost, if the options allow it.

        Raises DataLost if they do not, and the error itself if it is not about lost messages.
        """
        if error.message not in ("POSITION_GONE", "EPOCH_CHANGED", "POSITION_NOT_REACHED", "TOPIC_NOT_FOUND"):
            raise error
        lost = data_lost(self._span._replace(start=self._position), error.details)
        if self._options.fail_on_data_loss:
            raise lost
        logger.warning("%s", lost)
        # nsqd names the position behind damaged messages, or the one where the log begins now
        first = error.details.get("following", error.details.get("first"))
        if error.message == "POSITION_GONE" and isinstance(first, int) and first > self._position:
            self._position = min(first, self._span.end)
        else:
            self._position = self._span.end


def _first_batch(data: bytearray, whole: int, position: int) -> int:
    """The offset of the batch that holds `position`, in whole batches that were checked."""
    at = 0
    while at < whole:
        _, _, length, count, first, _, _, _ = HEADER.unpack_from(data, at)
        if position < first + count:
            break
        at += length
    return at


def data_lost(span: Span, bounds: dict[str, object]) -> DataLost:
    """The error that says which positions the query wants and which positions the log has."""
    wanted = f"[{span.start}, {span.end})" if span.start < span.end else f"{span.start}"
    there = f"[{bounds.get('first', '?')}, {bounds.get('next', '?')})" if "first" in bounds else "nothing"
    epoch = bounds.get("epoch")
    if "following" in bounds:
        there += f" without [{span.start}, {bounds['following']}), which was damaged,"
    another = f" in another log ({epoch}, not {span.epoch})" if epoch not in (None, span.epoch) else ""
    return DataLost(
        f"topic {span.topic!r} at nsqd {span.nsqd}: offsets {wanted} are to be read, "
        f"but the log has {there}{another}; "
        "with option 'failOnDataLoss' = false the query goes on with what is there"
    )
