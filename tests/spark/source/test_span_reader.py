"""Spans read from a real nsqd in pieces of any size, and answers that no nsqd gives."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from nsquark import kernel
from nsquark.spark.columns import SCHEMA
from nsquark.spark.errors import BadResponse, Unreachable
from nsquark.spark.source import span_reader
from nsquark.spark.source.offsets import Span
from nsquark.spark.source.options import parse_batch_options
from nsquark.spark.source.partitions import LogPartition
from nsquark.spark.source.span_reader import read_span
from tests.spark.broker import Broker, numbered


def read(
    address: str, epoch: str, start: int, end: int, fetch_bytes: int = 8 << 20, retries: int = 0
) -> list[list[tuple[int, bytes]]]:
    """Offsets and values, a list for each record batch."""
    options = {
        "nsqd.http.addresses": address,
        "subscribe": "t",
        "fetchbytes": str(fetch_bytes),
        "fetchoffset.numretries": str(retries),
        "fetchoffset.retryintervalms": "1",
    }
    partition = LogPartition(Span("t", "n", "127.0.0.1:4150", epoch, start, end), f"http://{address}")
    batches = read_span(partition, SCHEMA, parse_batch_options(options).fetch)
    return [
        list(zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True))
        for batch in batches
    ]


@pytest.mark.parametrize("fetch_bytes", [1, 3000, 8 << 20])
@pytest.mark.parametrize("piece", [1, 100, 1000, 4000, 1 << 20])
def test_pieces_of_any_size_are_the_same_rows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, piece: int, fetch_bytes: int
) -> None:
    bodies = [body * (1 + 40 * (number % 7 == 0)) for number, body in enumerate(numbered(200))]
    at = 0
    for size in (1, 1, 5, 60, 3, 100, 30):  # in batches of the log that are no larger than a piece, or are
        broker.publish("t", bodies[at : at + size])
        at += size
    epoch = broker.log("t")["epoch"]
    monkeypatch.setattr(span_reader, "PIECE", piece)
    for start, end in ((0, 200), (3, 199), (9, 10), (66, 67), (70, 170)):
        batches = read(broker.http_address, epoch, start, end, fetch_bytes)
        rows = [row for batch in batches for row in batch]
        assert rows == list(enumerate(bodies))[start:end]
    if fetch_bytes > 3000:
        assert (len(read(broker.http_address, epoch, 0, 200)) == 1) == (piece == 1 << 20)


def batches_of(bodies: list[bytes], position: int) -> bytes:
    writer = kernel.BatchWriter(position, 1)
    writer.add_bodies(bodies, 0, 0)
    return writer.take()


def answer(position: int, count: int, batches: bytes) -> bytes:
    return struct.pack(">4sIQQQ", b"NQR1", count, position, 0, len(batches)) + batches


@contextmanager
def serving(body: bytes, told: int, then: bytes = b"") -> Iterator[str]:
    """A server that answers every request with `body`, and a Content-Length of `told`.

    With `then`, all requests but the first are answered with that instead.
    """
    answers = [(body, told)]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body, told = answers[0]
            if then:
                answers[0] = then, len(then)
            self.send_response(200)
            self.send_header("Content-Length", str(told))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


GOOD = batches_of([b"a", b"b"], 5)


@pytest.mark.parametrize(
    "body",
    [
        b"NQX1" + answer(5, 2, GOOD)[4:],
        answer(4, 2, GOOD),
        answer(5, 0, GOOD),
        answer(5, 2, b""),
        answer(5, 2, GOOD[:-1]),
        answer(5, 2, b"x" * len(GOOD)),
        answer(5, 2, GOOD + b"more than that"),
        answer(5, 3, GOOD),
        answer(5, 2, GOOD + batches_of([b"c"], 7)),
        answer(5, 4, GOOD + GOOD),
        answer(5, 2, batches_of([b"a", b"b"], 6)),
        answer(5, 2, batches_of([b"a", b"b"], 3)),
    ],
)
def test_an_answer_that_is_none_of_nsqd_is_told(body: bytes) -> None:
    with serving(body, len(body)) as address, pytest.raises(BadResponse, match="not an answer of nsqd"):
        read(address, "0", 5, 7)


@pytest.mark.parametrize("at", range(4, len(GOOD), 7))
def test_a_flipped_bit_is_no_row(at: int) -> None:
    damaged = GOOD[:at] + bytes([GOOD[at] ^ 4]) + GOOD[at + 1 :]
    body = answer(5, 2, damaged)
    with serving(body, len(body)) as address, pytest.raises(BadResponse):
        read(address, "0", 5, 7)


def test_a_length_that_is_not_true_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an answer that promises a batch of a gigabyte, no more is made room for than comes, twice over."""
    sizes: list[int] = []
    grow = span_reader._SpanReader._grow_buffer

    def noted(self: span_reader._SpanReader, size: int) -> None:
        sizes.append(size)
        grow(self, size)

    monkeypatch.setattr(span_reader._SpanReader, "_grow_buffer", noted)
    huge = GOOD[:8] + (1 << 30).to_bytes(4, "big") + GOOD[12:]
    head = struct.pack(">4sIQQQ", b"NQR1", 2, 5, 0, 1 << 31)
    body = head + huge + bytes(span_reader.PIECE)
    with serving(body, len(body)) as address, pytest.raises(Unreachable):
        read(address, "0", 5, 7)
    assert len(sizes) > 1
    assert max(sizes) <= 2 * span_reader.PIECE


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    body = answer(5, 2, GOOD)
    with serving(body[:-3], len(body)) as address, pytest.raises(Unreachable, match="broke off"):
        read(address, "0", 5, 7)


def test_a_larger_answer_may_follow_one_that_broke_off(caplog: pytest.LogCaptureFixture) -> None:
    body = answer(5, 2, GOOD)
    larger = answer(5, 2, batches_of([b"a" * 1000, b"b"], 5))
    with serving(body[:-3], len(body), larger) as address:
        assert read(address, "0", 5, 7, retries=1) == [[(5, b"a" * 1000), (6, b"b")]]
    assert "broke off; trying again" in caplog.text
