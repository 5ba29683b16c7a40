"""The frames that a client of nsqd reads: `wire.FrameParser`, fed whole, byte by byte and in pieces."""

from __future__ import annotations

import struct

from nsquark.errors import ConnectionLost, parse_error
from nsquark.kernel import Delivery
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks, Response
from nsquark.wire.frames import HEARTBEAT, MESSAGE, OK, pack_error, pack_frame, pack_response
from reliability.fuzz.target import Target, bytewise, pieces_of, require_same

LIMIT = 2000


def _read(pieces: list[bytes]) -> tuple[object, ...]:
    parser: FrameParser[Delivery] = FrameParser(Delivery, None, LIMIT)
    heard: list[object] = []
    try:
        for piece in pieces:
            parser.feed(piece)
            while (event := parser.next_event(0.0)) is not None:
                heard += _events(event)
    except ConnectionLost as error:
        return heard, type(error).__name__, str(error)
    return heard, parser.pending, parser.take_rest()


def _events(event: Messages[Delivery] | Oks | Response | Error) -> list[object]:
    match event:
        case Messages(run):
            for message in run:
                message.answered = True  # or it would say that it was dropped
            return [(each.timestamp_ns, each.attempts, each.id, each.body) for each in run]
        case Oks(count):
            return [Response(b"OK")] * count
        case Error(data):
            error = parse_error(data)
            return [(type(error).__name__, error.fatal, str(error))]
    return [event]


def run(data: bytes) -> object:
    whole = _read([data])
    require_same("byte by byte", whole, _read(bytewise(data)))
    require_same("in pieces", whole, _read(pieces_of(data)))
    return whole


def _message(body: bytes) -> bytes:
    return pack_frame(
        MESSAGE, struct.pack(">qH16s", 1_700_000_000_000_000_000, 1, b"0123456789abcdef") + body
    )


def seeds() -> list[bytes]:
    return [
        OK + OK + HEARTBEAT + OK,
        _message(b"one") + _message(b"") + OK + _message(b"x" * 100),
        pack_error(b"E_INVALID no") + pack_error(b"E_FIN_FAILED FIN") + pack_error(b"E_BAD_PROTOCOL") + OK,
        pack_response(b'{"max_rdy_count":2500}') + pack_response(b""),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46\x00",
        b"\x00\x00\x00\x0eE_BAD_PROTOCOL",
        pack_frame(7, b"what"),
    ]


TARGET = Target(
    name="frames",
    run=run,
    seeds=seeds,
    modules=("nsquark.wire.frame_parser",),
    words=(OK, _message(b"z"), b"\0\0\0\2", b"\0\0\0\x1e", b"\0\0\0\x1d", b"\0\0\7\xd0", b"\xff\xff\xff\xff"),
)
