"""Bytes from a socket, decrypted and decompressed piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from nsquark.kernel import Buffer

if TYPE_CHECKING:
    from nsquark.wire.compression import Stream
    from nsquark.wire.tls import TlsStream

INPUT_SLICE = 16 << 10  # how much the decompressor gets at once, for it keeps what it has not used yet


class Decoder:
    """Has what was received and is not handed up yet. `tls` and `stream` are the layers it goes through."""

    __slots__ = ("_input", "_left", "_pieces", "dry", "stream", "tls")

    def __init__(self) -> None:
        self.tls: TlsStream | None = None
        self.stream: Stream | None = None
        self.dry = False  # `fill` has come to the end of what was received
        self._input = memoryview(b"")  # as it came, and not decompressed yet
        self._pieces: Iterator[Buffer] | None = None  # of what the decompressor has at hand
        self._left: memoryview | None = None  # of a piece that the last room was too small for

    def received(self, data: memoryview) -> None:
        """Take what was read from the socket; all that came before is handed up."""
        if self.tls is not None:
            self.tls.received(data)
        else:
            self._input = memoryview(bytes(data))

    def drop(self) -> None:
        """Forget what came and is not handed up."""
        self._input = memoryview(b"")
        self._left = self._pieces = None

    def fill(self, room: memoryview, until: float) -> int:
        """Put as much into the room as there is, and as the time allows; returns how much that was.

        Raises ConnectionLost for bytes that cannot be decoded.
        """
        if self.stream is None and self.tls is not None:
            filled, self.dry = self.tls.read_into(room)  # a room is filled long before the time is up
            return filled
        size, filled = len(room), 0
        while filled < size:
            piece = self._left
            if piece is None:
                found = self._piece(until)
                if not found:
                    break
                piece = memoryview(found)
            count = min(len(piece), size - filled)
            room[filled : filled + count] = piece[:count]
            filled += count
            self._left = piece[count:] if count < len(piece) else None
            if perf_counter() > until:
                break
        return filled

    def _piece(self, until: float) -> Buffer:
        """The next piece of what was said; nothing when the time is up, or when the decoder is `dry`."""
        while True:
            if self._pieces is not None:
                for piece in self._pieces:
                    return piece
                self._pieces = None
                if perf_counter() > until:
                    return b""
            data: Buffer
            if self.tls is not None:
                data = self.tls.read()
            else:
                data, self._input = self._input[:INPUT_SLICE], self._input[INPUT_SLICE:]
            if not data:
                self.dry = True
                return b""
            if self.stream is None:
                return data
            self._pieces = self.stream.decompress(data)
