"""The two compressed streams that IDENTIFY can ask for, without IO: for the client and for nsqd alike.

Each object is both directions of one connection. `compress` gives bytes that can be sent at once: whatever
went in comes out at the other end without waiting for more. `decompress` gives what has come in pieces of at
most `PIECE` bytes, so that a small input that stands for a huge output never lies in memory as a whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from nsquark import kernel
from nsquark.errors import ConnectionLost, UsageError

PIECE = 65536


class Stream(Protocol):
    """Both directions of a compressed connection."""

    def compress(self, data: kernel.Buffer) -> bytes:
        """What to send for `data`, flushed."""

    def decompress(self, data: kernel.Buffer) -> Iterator[kernel.Buffer]:
        """What `data`, as it came, stands for. Exhaust it before the next call.

        Raises ConnectionLost if it is not what the other end could have written.
        """


class Deflate:
    """Raw DEFLATE (RFC 1951), one stream in each direction that never ends, flushed after each burst."""

    def __init__(self, level: int = 6) -> None:
        self._deflater = _deflater(level)
        self._inflater = zlib.decompressobj(-15)  # for a single FIN, ISA-L needs three times as long

    def compress(self, data: kernel.Buffer) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: kernel.Buffer) -> Iterator[bytes]:
        inflater = self._inflater
        try:
            while True:
                piece = inflater.decompress(data, PIECE)
                if piece:
                    yield piece
                if inflater.eof:  # the inflater takes nothing more, and keeps its unconsumed tail for ever
                    raise ConnectionLost("the deflate stream has ended")
                data = inflater.unconsumed_tail
                # A full piece may have left output behind in the inflater even when all input is taken.
                if not data and len(piece) < PIECE:
                    break
        except zlib.error as error:
            raise ConnectionLost(f"the deflate stream is broken: {error}") from None


class _Deflater(Protocol):
    def compress(self, data: kernel.Buffer, /) -> bytes: ...

    def flush(self, mode: int, /) -> bytes: ...


# The level of ISA-L for a level of NSQ. Left out are 0, which may make more bytes than it gets, and 3, which
# makes more of a single message than 2 does.
_ISAL_LEVEL = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
_ISAL_MEMORY = 2  # of 9: with more, writes of 64 KB come out no smaller


def _deflater(level: int) -> _Deflater:
    """ISA-L's where it is installed; zlib's for the levels above 6, which ask for the smallest output."""
    if level in _ISAL_LEVEL:
        try:
            from isal import isal_zlib
        except ImportError:
            pass
        else:
            return isal_zlib.compressobj(_ISAL_LEVEL[level], isal_zlib.DEFLATED, -15, _ISAL_MEMORY)
    return zlib.compressobj(level, zlib.DEFLATED, -15)


# A chunk of the snappy framing format:
#
#   0      1              4
#   | u8   | u24, little  | ...
#   | type | length       | data
#
# Data of types 00 (compressed) and 01 (as it is) begin with the masked CRC-32C of what they stand for.
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _STORED, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_LARGEST = 65536  # uncompressed bytes of a chunk
_LARGEST_COMPRESSED = 4 + 32 + _LARGEST + _LARGEST // 6  # a block that will not compress, and its checksum
_WORTH_TRYING = 64  # bytes below which compressing a chunk gains nothing
_U32 = struct.Struct("<I")


class Snappy:
    """The snappy framing format. Needs cramjam for the blocks inside."""

    def __init__(self) -> None:
        self._compress_block, self._decompress_block = _codec()
        self._opened = False
        self._identified = False
        self._rest = bytearray()
        self._skip = 0

    def compress(self, data: kernel.Buffer) -> bytes:
        pieces = []
        if not self._opened:
            self._opened = True
            pieces.append(IDENTIFIER)
        for start in range(0, len(data), _LARGEST):
            block = bytes(data[start : start + _LARGEST])
            crc = _masked_crc(block)
            kind = _STORED
            if len(block) >= _WORTH_TRYING:
                smaller = self._compress_block(block)
                if len(smaller) < len(block) - len(block) // 8:
                    kind, block = _COMPRESSED, smaller
            pieces += (_U32.pack(len(block) + 4 << 8 | kind), crc, block)
        return b"".join(pieces)

    def decompress(self, data: kernel.Buffer) -> Iterator[bytes]:
        rest = self._rest
        rest += data
        while True:
            if self._skip:
                passed = min(self._skip, len(rest))
                del rest[:passed]
                self._skip -= passed
            if len(rest) < 4:
                return
            kind, length = rest[0], int.from_bytes(rest[1:4], "little")
            self._check(kind, length)
            if _FIRST_SKIPPABLE <= kind < _IDENTIFIER:
                self._skip = 4 + length  # not kept while it comes: it may be 16 MiB
                continue
            if len(rest) < 4 + length:
                return
            chunk = bytes(memoryview(rest)[4 : 4 + length])
            del rest[: 4 + length]
            if kind == _IDENTIFIER:
                if chunk != IDENTIFIER[4:]:
                    raise _broken("a wrong identifier")
                self._identified = True
                continue
            block = chunk[4:] if kind == _STORED else self._unpacked(chunk[4:])
            if _masked_crc(block) != chunk[:4]:
                raise _broken("a checksum does not match")
            if block:
                yield block

    def _check(self, kind: int, length: int) -> None:
        """Refuse a chunk by its head, before anything is kept of it."""
        if kind == _IDENTIFIER:
            if length != 6:
                raise _broken("a wrong identifier")
        elif not self._identified:
            raise _broken("it does not begin with its identifier")
        elif kind < _FIRST_SKIPPABLE:
            if kind > _STORED:
                raise _broken(f"a chunk of type {kind:#04x}")
            limit = _LARGEST + 4 if kind == _STORED else _LARGEST_COMPRESSED
            if not 4 <= length <= limit:
                raise _broken(f"a chunk of {length} bytes")

    def _unpacked(self, block: bytes) -> bytes:
        # The block says how long it will be: a varint of at most three bytes for 65536.
        size = shift = 0
        for byte in block[:3]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            raise _broken("a block without its size")
        if size > _LARGEST:
            raise _broken(f"a block of {size} bytes")
        try:
            return self._decompress_block(block)
        except Exception as error:  # cramjam's own, which is imported late
            raise _broken(str(error)) from None


def _broken(what: str) -> ConnectionLost:
    return ConnectionLost(f"the snappy stream is broken: {what}")


def _masked_crc(data: bytes) -> bytes:
    crc = kernel.crc32c(data, 0, len(data))
    return _U32.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def has_snappy() -> bool:
    """Whether the library for snappy is there."""
    try:
        import cramjam  # noqa: F401
    except ImportError:
        return False
    return True


Codec = Callable[[bytes], bytes]


def _codec() -> tuple[Codec, Codec]:
    try:
        from cramjam import snappy
    except ImportError:
        raise UsageError("snappy needs the package cramjam") from None
    return (
        lambda block: bytes(snappy.compress_raw(block)),
        lambda block: bytes(snappy.decompress_raw(block)),
    )
