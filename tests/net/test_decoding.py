"""What came, decompressed into rooms of any size, within its time."""

from __future__ import annotations

import math
import random

import pytest

from nsquark.errors import ConnectionLost
from nsquark.net.decoding import Decoder
from nsquark.wire.compression import Deflate, Snappy, Stream

SAID = random.Random(1).randbytes(50_000) + bytes(200_000)


def drained(decoder: Decoder, size: int) -> bytes:
    said, room = b"", memoryview(bytearray(size))
    decoder.dry = False
    while not decoder.dry:
        said += room[: decoder.fill(room, math.inf)]
    return said


@pytest.mark.parametrize("size", [1000, 65536, 1 << 20])
@pytest.mark.parametrize("stream", [None, Snappy, Deflate])
def test_it_comes_out_as_it_was_said(stream: type[Snappy | Deflate] | None, size: int) -> None:
    decoder = Decoder()
    sent = SAID
    if stream is not None:
        sent, decoder.stream = stream().compress(SAID), stream()
    said = b""
    for at in range(0, len(sent), 30_000):
        decoder.received(memoryview(sent)[at : at + 30_000])
        said += drained(decoder, size)
    assert said == SAID


def test_when_the_time_is_up_the_rest_comes_later() -> None:
    decoder = Decoder()
    decoder.stream = Deflate()
    decoder.received(memoryview(Deflate().compress(bytes(1 << 20))))
    room = memoryview(bytearray(1 << 20))
    filled = decoder.fill(room, 0.0)
    assert 0 < filled < 1 << 20
    assert not decoder.dry
    assert filled + len(drained(decoder, 65536)) == 1 << 20


def test_what_is_dropped_does_not_come() -> None:
    decoder = Decoder()
    decoder.received(memoryview(SAID))
    assert decoder.fill(memoryview(bytearray(10)), math.inf) == 10
    decoder.drop()
    assert drained(decoder, 1000) == b""


@pytest.mark.parametrize("stream", [Snappy(), Deflate()])
def test_what_cannot_be_decoded_is_an_error(stream: Stream) -> None:
    decoder = Decoder()
    decoder.stream = stream
    decoder.received(memoryview(b"\xff" * 100))
    with pytest.raises(ConnectionLost):
        drained(decoder, 1000)
