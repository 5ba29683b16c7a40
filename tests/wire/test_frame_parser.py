"""Frames from an nsqd: whole, byte by byte, and broken."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from nsquark.errors import ConnectionLost
from nsquark.kernel import Delivery
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks, Response


class Message(Delivery):
    __slots__ = ()


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message(number: int, body: bytes, attempts: int = 1) -> bytes:
    return frame(2, struct.pack(">qH16s", 77, attempts, b"%016x" % number) + body)


OK = frame(0, b"OK")
TRANSCRIPT = [
    OK + OK,
    frame(0, b"_heartbeat_"),
    message(1, b"a") + message(2, b""),
    OK,
    frame(1, b"E_FIN_FAILED FIN x failed"),
    message(3, b"x" * 300_000, 65535),
    frame(0, b"{}"),
    frame(0, b""),
    message(4, b"b"),
]
EXPECTED = [
    "OK", "OK", b"_heartbeat_", (1, b"a", 1), (2, b"", 1), "OK", "E_FIN_FAILED FIN x failed",
    (3, b"x" * 300_000, 65535), b"{}", b"", (4, b"b", 1),
]  # fmt: skip


def parsed(pieces: Iterable[bytes], parser: FrameParser[Message] | None = None) -> list[object]:
    """Everything that comes out, one thing at a time."""
    parser = parser or FrameParser(Message, "source")
    out: list[object] = []
    for piece in pieces:
        while piece:
            room = parser.get_buffer()
            count = min(len(piece), len(room))
            room[:count] = piece[:count]
            parser.received(count)
            piece = piece[count:]
            out += drained(parser)
    return out


def drained(parser: FrameParser[Message]) -> Iterable[object]:
    while (event := parser.next_event(5.0)) is not None:
        match event:
            case Oks(count):
                yield from ["OK"] * count
            case Response(data):
                yield data
            case Error(data):
                yield data.decode()
            case Messages(run):
                for each in run:
                    assert (each.timestamp_ns, each.source, each.stamp, each.answered) == (
                        77, "source", 5.0, False,
                    )  # fmt: skip
                    each.answered = True
                    yield int(each.id, 16), each.body, each.attempts


@pytest.mark.parametrize("size", [1, 7, 4096, 10**9])
def test_frames_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    whole = b"".join(TRANSCRIPT)
    if size == 1:  # the giant byte by byte would take a while and say nothing new
        whole = whole.replace(message(3, b"x" * 300_000, 65535), b"")
    expected = [each for each in EXPECTED if size > 1 or not isinstance(each, tuple) or each[0] != 3]
    assert parsed(whole[at : at + size] for at in range(0, len(whole), size)) == expected


def test_fed_bytes_are_the_same_as_read_ones() -> None:
    parser: FrameParser[Message] = FrameParser(Message, "source")
    parser.feed(b"".join(TRANSCRIPT))
    assert list(drained(parser)) == EXPECTED


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 3, 0),
        struct.pack(">ii", 3, 1),
        struct.pack(">ii", 10, 3),
        struct.pack(">ii", 10, -1),
        struct.pack(">ii", 29, 2) + bytes(25),
        struct.pack(">ii", 2**31 - 1, 2),
        struct.pack(">ii", 1001, 0),
    ],
)
def test_what_is_no_frame_ends_the_connection(data: bytes) -> None:
    parser: FrameParser[Message] = FrameParser(Message, "source", max_frame=1000)
    with pytest.raises(ConnectionLost):
        parsed([OK, data], parser)


def test_a_claimed_size_costs_nothing() -> None:
    parser: FrameParser[Message] = FrameParser(Message, "source")
    assert parsed([struct.pack(">ii", 100 << 20, 2) + bytes(1000)], parser) == []
    assert len(parser.get_buffer()) < 1 << 20
    assert parser.pending == 1008


def test_the_rest_can_be_taken_for_another_layer() -> None:
    parser: FrameParser[Message] = FrameParser(Message, "source")
    parser.feed(OK + b"\xff\x06")
    assert parser.next_event(0.0) == Oks(1)
    assert parser.take_rest() == b"\xff\x06"
    assert parser.pending == 0
