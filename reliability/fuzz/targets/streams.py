"""Snappy and deflate streams from a client, through the decoder between a socket and the protocol.

The first byte chooses the stream. What is handed up must not depend on the pieces, and never lies in memory
in larger parts than `PIECE`.
"""

from __future__ import annotations

import contextlib
import math
import struct

from nsquark.errors import ConnectionLost
from nsquark.net.decoding import Decoder
from nsquark.wire.compression import IDENTIFIER, PIECE, Deflate, Snappy, Stream
from reliability.fuzz.target import Target, Wrong, bytewise, pieces_of, require_same

MOST = 1 << 21  # decoded bytes after which the rest is not looked at


def _decode(stream: Stream, pieces: list[bytes], room: int) -> tuple[bytes, bool]:
    """What came out, and whether the stream was found broken."""
    decoder, out = Decoder(), bytearray()
    decoder.stream = stream
    view = memoryview(bytearray(room))
    for piece in pieces:
        decoder.received(memoryview(piece))
        decoder.dry = False
        while not decoder.dry:
            try:
                filled = decoder.fill(view, math.inf)
            except ConnectionLost:
                return bytes(out), True
            out += view[:filled]
            if len(out) > MOST:
                return bytes(out[:MOST]), False
    return bytes(out), False


def _largest(stream: Stream, data: bytes) -> None:
    """Every piece of what is decompressed is as small as promised."""
    try:
        total = 0
        for piece in stream.decompress(data):
            total += len(piece)
            if len(piece) > PIECE:
                raise Wrong(f"a piece of {len(piece)} bytes")
            if total > MOST:
                return
    except ConnectionLost:
        pass


def run(data: bytes) -> object:
    kind, data = (Snappy if data[:1] < b"\x80" else Deflate), data[1:]
    _largest(kind(), data)
    whole, broken = _decode(kind(), [data], 1 << 16)
    if len(whole) == MOST:
        return whole[:100]
    # Of a stream that is found broken, fewer bytes may have been handed up when it came in one piece.
    for name, pieces, room in (
        ("in pieces", pieces_of(data), 100),
        ("byte by byte", bytewise(data), 1 << 16),
    ):
        other, other_broken = _decode(kind(), pieces, room)
        require_same(f"broken, {name}", broken, other_broken)
        if not broken:
            require_same(name, whole, other)
        elif not other.startswith(whole) and not whole.startswith(other):
            raise Wrong(f"{name} {other!r} is not {whole!r}")
    return broken, len(whole) if broken else whole


def repair(data: bytes) -> bytes:
    """Give every chunk of a snappy stream the checksum of what it stands for."""
    from nsquark.wire.compression import _codec, _masked_crc

    if data[:1] >= b"\x80":
        return data
    unpack, out, at = _codec()[1], bytearray(data), 1
    while at + 8 <= len(out):
        kind, length = out[at], int.from_bytes(out[at + 1 : at + 4], "little")
        block = bytes(out[at + 8 : at + 4 + length])
        if kind == 1:
            out[at + 4 : at + 8] = _masked_crc(block)
        elif kind == 0 and len(block) < 5000:
            with contextlib.suppress(Exception):  # a block that cannot be unpacked has no checksum
                out[at + 4 : at + 8] = _masked_crc(unpack(block))
        at += 4 + length
    return bytes(out)


def seeds() -> list[bytes]:
    text = b"the same, and the same again, " * 8
    snappy, deflate, bomb = Snappy(), Deflate(), Deflate()
    return [
        b"\0" + snappy.compress(b"PUB t\n") + snappy.compress(text) + snappy.compress(b"x" * 200),
        b"\0" + IDENTIFIER + IDENTIFIER + b"\xfe\x05\0\0abcde" + Snappy().compress(b"short"),
        b"\0" + IDENTIFIER + b"\x01\x04\0\0" + struct.pack("<I", 0xA282EAD8),
        b"\0" + Snappy().compress(bytes(70000)),
        b"\x80" + deflate.compress(b"PUB t\n") + deflate.compress(text) + deflate.compress(b"y"),
        b"\x80" + bomb.compress(bytes(1 << 18)),
        b"\x80\x03\x00",
    ]


TARGET = Target(
    name="streams",
    run=run,
    seeds=seeds,
    modules=("nsquark.net.decoding", "nsquark.wire.compression"),
    words=(
        IDENTIFIER,
        b"\x01\x05\0\0",
        b"\0\x08\0\0",
        b"\xfe\0\0\0",
        b"\x80\x80\x04",
        b"\xff\xff\x03",
        b"\x03\x00",
    ),
    repair=repair,
)
