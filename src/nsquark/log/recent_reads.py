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
    """The pieces that were used last. Only the event loop's thread may use this.

    They have `max_bytes` at most in all, and each has `least` bytes at least: so they are few, and quick to
    look through.
    """

    def __init__(self, max_bytes: int = 16 << 20, least: int = 32 << 10) -> None:
        self.max_bytes = max_bytes
        self.least = least
        self._bytes = 0
        self._of: dict[Segment, list[ReadPiece]] = {}
        self._order: dict[ReadPiece, None] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._order)

    def find(self, segment: Segment, offset: int, known: int) -> ReadPiece | None:
        """A piece that holds more than `known` bytes of the segment from `offset` on."""
        for piece in reversed(self._of.get(segment, ())):
            if piece.base <= offset and offset + known < piece.base + len(piece.data):
                piece.used = True
                del self._order[piece]
                self._order[piece] = None
                return piece
        return None

    def add(self, piece: ReadPiece) -> None:
        """Keep a piece that was just read, unless it is too small, or so large that few others are left."""
        if not self.least <= len(piece.data) <= self.max_bytes // 4:
            return
        self._of.setdefault(piece.segment, []).append(piece)
        self._order[piece] = None
        self._bytes += len(piece.data)
        while self._bytes > self.max_bytes:
            self._drop(next(iter(self._order)))

    def forget(self, segment: Segment) -> None:
        """The file of this segment may be another one now, or is not wanted any more."""
        for piece in list(self._of.get(segment, ())):
            self._drop(piece)

    def forget_unused(self) -> None:
        """Let go of what was not used since the last call. A timer calls this."""
        for piece in list(self._order):
            if not piece.used:
                self._drop(piece)
            piece.used = False

    def _drop(self, piece: ReadPiece) -> None:
        pieces = self._of[piece.segment]
        pieces.remove(piece)
        if not pieces:
            del self._of[piece.segment]
        del self._order[piece]
        self._bytes -= len(piece.data)


RECENT_READS = RecentReads()  # one for all logs, as the memory is that of the process
