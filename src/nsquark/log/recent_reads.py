"""What was read from segments last, of all logs of the process.

Channels of a topic that lag together want the same bytes. One of them reads a piece of the file, and the
others share it: that spares reads, memory, and above all the processor's caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .segment import Segment


class ReadPiece:
    """Bytes of a segment, from the offset `base` of its file."""

    __slots__ = ("base", "data", "openings", "segment", "used")

    def __init__(self, segment: Segment, base: int, data: bytes) -> None:
        self.segment = segment
        self.base = base
        self.data = data
        self.openings = segment.openings
        self.used = True  # since the last `forget_unused`

    @property
    def stale(self) -> bool:
        """Whether the file is to be read again: it may be another one, or have read wrong."""
        return self.openings != self.segment.openings


class RecentReads:
    """The pieces that were used last, up to `max_bytes`. Only the event loop's thread may use this."""

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pieces: list[ReadPiece] = []  # in the order of their last use

    def find(self, segment: Segment, offset: int, known: int) -> ReadPiece | None:
        """A piece that holds more than `known` bytes of the segment from `offset` on."""
        for piece in reversed(self._pieces):
            if (
                piece.segment is segment
                and piece.base <= offset
                and offset + known < piece.base + len(piece.data)
            ):
                piece.used = True
                if piece is not self._pieces[-1]:
                    self._pieces.remove(piece)
                    self._pieces.append(piece)
                return piece
        return None

    def add(self, piece: ReadPiece) -> None:
        """Keep a piece that was just read, unless it is so large that few others would be left."""
        if not 0 < len(piece.data) <= self._max_bytes // 4:
            return
        self._pieces.append(piece)
        self._bytes += len(piece.data)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._pieces.pop(0).data)

    def forget(self, segment: Segment) -> None:
        if any(piece.segment is segment for piece in self._pieces):
            self._keep([piece for piece in self._pieces if piece.segment is not segment])

    def forget_unused(self) -> None:
        """Let go of what was not used since the last call. A timer calls this."""
        self._keep([piece for piece in self._pieces if piece.used])
        for piece in self._pieces:
            piece.used = False

    def _keep(self, pieces: list[ReadPiece]) -> None:
        self._pieces = pieces
        self._bytes = sum(len(piece.data) for piece in pieces)


RECENT_READS = RecentReads()  # one for all logs, as the memory is that of the process
