"""The compressed streams: round trips, the bytes that others write, bombs and noise."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.errors import ConnectionLost
from nsquark.wire.compression import IDENTIFIER, PIECE, Deflate, Snappy, Stream

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"

streams = pytest.mark.parametrize("kind", [Deflate, Snappy])


def out(stream: Stream, data: bytes) -> bytes:
    return b"".join(bytes(piece) for piece in stream.decompress(data))


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@streams
def test_what_is_compressed_can_be_read_at_once(kind: type[Stream]) -> None:
    here, there = kind(), kind()
    for data in (b"x", OK, b"y" * 200_000, noise(70_000), noise(65_536) + b"z" * 65_536):
        assert out(there, here.compress(data)) == data


@streams
def test_cut_anywhere_it_comes_out_the_same(kind: type[Stream]) -> None:
    here, there = kind(), kind()
    packed = here.compress(OK) + here.compress(b"abc" * 1000) + here.compress(noise(500))
    assert b"".join(out(there, packed[at : at + 1]) for at in range(len(packed))) == (
        OK + b"abc" * 1000 + noise(500)
    )


@streams
def test_a_bomb_comes_out_in_pieces(kind: type[Stream]) -> None:
    packed = kind().compress(bytes(50 << 20))
    sizes = [len(piece) for piece in kind().decompress(packed)]
    assert sum(sizes) == 50 << 20
    assert max(sizes) <= PIECE


@given(st.lists(st.binary(max_size=300)), st.sampled_from([Deflate, Snappy]))
def test_round_trips(pieces: list[bytes], kind: type[Stream]) -> None:
    here, there = kind(), kind()
    assert b"".join(out(there, here.compress(piece)) for piece in pieces) == b"".join(pieces)


@given(st.binary(min_size=1, max_size=200), st.sampled_from([Deflate, Snappy]))
def test_noise_is_refused_or_waited_for_but_never_crashes(data: bytes, kind: type[Stream]) -> None:
    with contextlib.suppress(ConnectionLost):
        out(kind(), data)


def test_deflate_is_raw_and_flushed() -> None:
    packed = Deflate().compress(b"hello")
    assert packed.endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(-15).decompress(packed) == b"hello"


def test_the_empty_block_that_nsqd_begins_with_is_nothing() -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    assert out(Deflate(), deflater.flush(zlib.Z_SYNC_FLUSH)) == b""


def test_a_deflate_stream_does_not_end() -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    with pytest.raises(ConnectionLost, match="has ended"):
        out(Deflate(), deflater.compress(b"x") + deflater.flush())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, 3 * PIECE + 5])
def test_a_deflate_stream_that_has_ended_is_not_read_for_ever(size: int) -> None:
    """What lies behind the end stays the unconsumed tail of the inflater, however often it is asked."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    pieces = Deflate().decompress(deflater.compress(bytes(size)) + deflater.flush() + b"and more")
    out_of_it: list[bytes] = []
    with pytest.raises(ConnectionLost, match="has ended"):
        out_of_it.extend(map(bytes, pieces))
    assert b"".join(out_of_it) == bytes(size)


@pytest.fixture(params=["ISA-L", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both of the libraries that a deflater may come from."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)  # importing it fails
    return str(request.param)


def text(size: int, seed: int = 0) -> bytes:
    """Messages as they are in a run: something repeats, in each other numbers."""
    chance = random.Random(7)
    words = [chance.randbytes(chance.randint(2, 9)).hex().encode() for _ in range(300)]
    chance.seed(seed)
    out = bytearray()
    while len(out) < size:
        out += b'{"id":%d,"words":"%b"}' % (chance.randrange(10**9), b" ".join(chance.choices(words, k=9)))
    return bytes(out[:size])


@pytest.mark.parametrize("level", range(1, 10))
def test_zlib_inflates_every_level_and_is_inflated(level: int, library: str) -> None:
    here, there = Deflate(level), zlib.decompressobj(-15)
    zlibs = zlib.compressobj(level, zlib.DEFLATED, -15)
    # Beyond the window of 32 KB, what will not shrink, what was said before, and the shortest there is.
    for data in (OK, text(300), text(100_000), noise(70_000), b"x", text(40_000), bytes(200_000), OK, OK):
        packed = here.compress(data)
        assert packed.endswith(b"\x00\x00\xff\xff")
        assert there.decompress(packed) == data
        assert out(here, zlibs.compress(data) + zlibs.flush(zlib.Z_SYNC_FLUSH)) == data


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"ab", OK, noise(999), text(9000)]),
            st.binary(max_size=99),
            st.integers(0, 99),
        )
    ),
    st.integers(1, 9),
)
def test_zlib_inflates_whatever_is_said(parts: list[tuple[bytes, bytes, int]], level: int) -> None:
    here, there = Deflate(level), zlib.decompressobj(-15)
    for known, new, times in parts:
        data = known * times + new
        assert there.decompress(here.compress(memoryview(data))) == data


@pytest.mark.parametrize("size", [250, 20_000], ids=["a message each", "eighty together"])
def test_a_higher_level_makes_less_of_it(size: int, library: str) -> None:
    runs = [text(size, seed) for seed in range(100)]
    sizes = [sum(len(packed) for packed in map(Deflate(level).compress, runs)) for level in (1, 6, 9)]
    assert sizes[0] > sizes[1] >= sizes[2]


def test_isal_compresses_up_to_the_level_that_nsqd_allows_by_itself_and_zlib_beyond() -> None:
    by = [type(Deflate(level)._deflater).__module__ for level in range(1, 10)]
    assert by == ["isal_zlib"] * 6 + ["zlib"] * 3


def test_without_isal_zlib_compresses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    plain = zlib.compressobj(6, zlib.DEFLATED, -15)
    assert Deflate(6).compress(text(5000)) == plain.compress(text(5000)) + plain.flush(zlib.Z_SYNC_FLUSH)


def test_noise_grows_by_next_to_nothing() -> None:
    assert len(Deflate(1).compress(noise(50_000))) < 50_100


# ---- snappy


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def masked(data: bytes) -> bytes:
    from nsquark.kernel.pure import crc32c

    crc = crc32c(data, 0, len(data))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.mark.parametrize("data", [b"x" * 10, b"ab" * 100_000, noise(100_000)])
def test_snappy_is_what_another_implementation_reads_and_writes(data: bytes) -> None:
    assert bytes(cramjam.snappy.decompress(Snappy().compress(data))) == data
    assert out(Snappy(), bytes(cramjam.snappy.compress(data))) == data


def test_small_data_are_stored_and_large_ones_compressed() -> None:
    packed = Snappy().compress(OK)
    assert packed == IDENTIFIER + chunk(1, masked(OK) + OK)
    assert len(Snappy().compress(b"a" * 65_536)) < 5000


def test_what_may_be_skipped_is_skipped_and_the_identifier_may_come_again() -> None:
    stored = chunk(1, masked(b"hi") + b"hi")
    padding = chunk(0xFE, bytes(100_000)) + chunk(0x80, b"whatever")
    packed = IDENTIFIER + padding + stored + IDENTIFIER + stored
    stream = Snappy()
    assert b"".join(out(stream, packed[at : at + 999]) for at in range(0, len(packed), 999)) == b"hihi"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (chunk(1, masked(b"hi") + b"hi"), "identifier"),
        (b"\xff\x06\x00\x00sNaPpy", "identifier"),
        (b"\xff\x07\x00\x00sNaPpY!", "identifier"),
        (IDENTIFIER + chunk(1, b"????hi"), "checksum"),
        (IDENTIFIER + chunk(2, b"abcdef"), "type 0x02"),
        (IDENTIFIER + chunk(0x7F, b"abcdef"), "type 0x7f"),
        (IDENTIFIER + chunk(1, b"abc"), "3 bytes"),
        (IDENTIFIER + b"\x01" + (65_541).to_bytes(3, "little"), "65541 bytes"),
        (IDENTIFIER + b"\x00" + (200_000).to_bytes(3, "little"), "200000 bytes"),
        (IDENTIFIER + chunk(0, b"????" + b"\x81\x80\x04rest"), "65537 bytes"),
        (IDENTIFIER + chunk(0, b"????" + b"\xff\xff\xff\xff\x0f"), "size"),
        (IDENTIFIER + chunk(0, b"????" + b"\x05garbage"), "broken"),
    ],
)
def test_a_broken_snappy_stream_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ConnectionLost, match=reason):
        out(Snappy(), data)
