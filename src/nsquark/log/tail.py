"""The newest batches of a log, in memory: most reads find there what they want.

The tail of a log with files is bounded, as the files hold the rest. A log without files has nothing but its
tail, so that tail grows until the topic says what its channels still need.
"""

from __future__ import annotations

from bisect import bisect_right

from .ranges import Ranges
from .segment import Segment


class TailChunk:
    """What one commit wrote: whole batches with the positions [position, end).

    They lie in the file of `segment` at `offset`. `segment` is None in a log without files.
    """

    __slots__ = ("data", "end", "offset", "position", "segment")

    position: int
    end: int
    data: bytes
    segment: Segment | None
    offset: int


class Tail:
    """The chunks of a log, in the order of their positions. There can be gaps between them."""

    __slots__ = ("_kept", "_kept_bytes", "chunks", "max_bytes", "max_messages", "size")

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.chunks: list[TailChunk] = []
        self.size = 0  # the bytes of the chunks
        self._kept = self._kept_bytes = 0  # chunks and bytes that the last `keep` has left

    def add(self, position: int, end: int, data: bytes, segment: Segment | None, offset: int) -> None:
        """Add what a commit wrote. If that is in a file, and the tail exceeds a bound, older chunks go."""
        chunk = TailChunk.__new__(TailChunk)
        chunk.position = position
        chunk.end = end
        chunk.data = data
        chunk.segment = segment
        chunk.offset = offset
        self.chunks.append(chunk)
        self.size += len(data)
        if segment is not None:
            oldest = self.chunks[0]
            if self.size > self.max_bytes or end - oldest.position > self.max_messages:
                self._shorten(end)

    def _shorten(self, end: int) -> None:
        """Forget the oldest chunks until three quarters of the bounds are left, but never the newest chunk.

        Going below the bounds makes this rare, and cheap per message.
        """
        messages = self.max_messages - self.max_messages // 4
        size = self.max_bytes * 3 // 4
        gone = 0
        last = len(self.chunks) - 1
        while gone < last:
            chunk = self.chunks[gone]
            if self.size <= size and chunk.end + messages > end:
                break
            self.size -= len(chunk.data)
            gone += 1
        del self.chunks[:gone]

    def find(self, position: int) -> TailChunk | None:
        """The chunk that holds this position, if it is in memory."""
        if not self.chunks:
            return None
        chunk = self.chunks[-1]
        if position < chunk.position:
            low, high = 0, len(self.chunks) - 1
            while low < high:  # a channel that lags comes here for each run: no calls
                middle = (low + high) // 2
                chunk = self.chunks[middle]
                if chunk.position <= position:
                    low = middle + 1
                else:
                    high = middle
            if low == 0:
                return None
            chunk = self.chunks[low - 1]
        return chunk if position < chunk.end else None

    def find_run(self, position: int) -> list[TailChunk]:
        """The chunks from the one that holds this position to the first gap."""
        chunks = self.chunks
        at = bisect_right(chunks, position, key=_position_of) - 1
        if at < 0 or position >= chunks[at].end:
            return []
        end = at + 1
        while end < len(chunks) and chunks[end].position == chunks[end - 1].end:
            end += 1
        return chunks[at:end]

    def clear(self) -> None:
        self.chunks.clear()
        self.size = 0

    @property
    def overgrown(self) -> bool:
        """Whether the tail has grown so much since the last `keep` that another one is worth its cost."""
        return len(self.chunks) > 2 * self._kept + 64 or self.size > self.max_bytes + 2 * self._kept_bytes

    def keep(self, needed: Ranges) -> None:
        """Forget every chunk that holds none of these positions."""
        self.chunks = [chunk for chunk in self.chunks if needed.overlaps(chunk.position, chunk.end)]
        self.size = self._kept_bytes = sum(len(chunk.data) for chunk in self.chunks)
        self._kept = len(self.chunks)


def _position_of(chunk: TailChunk) -> int:
    return chunk.position
