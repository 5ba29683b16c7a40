"""Reading a topic log from a position onwards, a run of frames at a time."""

from __future__ import annotations

import struct

from nsquark.errors import LogCorrupt
from nsquark.kernel import BatchReader, Buffer, find_message
from nsquark.kernel.pure import HEADER, MAGIC

from .recent_reads import ReadPiece
from .segment import Segment
from .topic_log import TopicLog

SIZE = struct.Struct(">I")  # of a frame, without itself
READ_SIZE = 64 << 10  # at first; it doubles with each read that goes on from the last
MAX_READ_SIZE = 1 << 20


class Run:
    """Messages whose positions and ids follow each other. `published` is the time of the first of them.

    A run with a `due` time is a deferred batch that the cursor has passed over; its `frames` are empty.
    """

    __slots__ = ("count", "due", "first_id", "frames", "position", "published")

    def __init__(
        self, position: int, count: int, first_id: int, frames: Buffer, due: int = 0, published: int = 0
    ) -> None:
        self.position = position
        self.count = count
        self.first_id = first_id
        self.frames = frames
        self.due = due
        self.published = published


class Cursor:
    """A place in a log. It reads from the tail where it can and from the files where it must.

    `position` is that of the next message. With `whatever_due` it reads deferred batches like others.
    """

    __slots__ = (
        "_base", "_passed", "_piece", "_read_size", "_reader", "_segment", "_stood_at", "log", "position",
    )  # fmt: skip

    def __init__(self, log: TopicLog, position: int, whatever_due: bool = False) -> None:
        self.log = log
        self.position = position
        self._reader = BatchReader()  # over the data at hand, of the tail or of a file
        self._reader.whatever_due = whatever_due
        self._segment: Segment | None = None  # the one that the data are from
        self._piece: ReadPiece | None = None  # the data, or more, if a file was read
        self._base = 0  # the offset in the segment at which the data begin
        self._read_size = READ_SIZE
        self._stood_at = -1  # the position at the last `rest`
        self._passed: Run | None = None  # the rest of a deferred batch in whose middle the cursor was set

    @property
    def data(self) -> bytes:
        """The data at hand."""
        return self._reader.data

    def seek(self, position: int) -> None:
        """Go on from `position`."""
        if position != self.position:
            self.position = position
            self.let_go()

    def let_go(self) -> None:
        """Forget the data at hand: the next read looks for the position again."""
        self._segment = None
        self._piece = None
        self._set_data(b"", 0)
        self._read_size = READ_SIZE

    def _set_data(self, data: bytes, base: int) -> None:
        """Go on at the beginning of `data`, at a batch header. The data lie at the offset `base`."""
        reader = self._reader
        reader.data = data
        reader.at = 0
        reader.remaining = 0
        self._base = base

    def rest(self) -> bool:
        """Let go of the data, if nothing was read since the last call. Returns whether the cursor has any.

        A timer calls this for cursors that live long: the data are up to a megabyte of a file, or a chunk
        that the log itself does not hold any more.
        """
        if self.data and self.position == self._stood_at:
            self.let_go()
        self._stood_at = self.position
        return bool(self.data)

    def take(self, want: int, max_bytes: int) -> Run | None:
        """The next messages, of the data at hand, or of the chunk of the tail that follows on them.

        At most `want`, and at most `max_bytes` unless the first alone has more. None where the next messages
        are in neither of them, or are deferred: the cursor is then where it was.
        """
        reader = self._reader
        if reader.at >= len(reader.data):
            log = self.log
            if self.position < log.first or self.position >= log.end:
                return None
            chunk = log.tail.find(self.position)
            if chunk is None or chunk.position != self.position or chunk.data is reader.data:
                return None
            reader.data = chunk.data
            reader.at = 0
            reader.remaining = 0
            self._segment = chunk.segment
            self._piece = None
            self._base = chunk.offset
        frames = reader.gather(want, max_bytes)
        if not reader.count:
            return None
        run = Run.__new__(Run)
        run.position = self.position
        run.count = reader.count
        run.first_id = reader.first_id
        run.frames = frames
        run.due = 0
        run.published = reader.timestamp
        self.position += reader.count
        return run

    def read(self, want: int, max_bytes: int) -> Run | None:
        """The next messages: at most `want`, and at most `max_bytes` unless the first alone has more.

        None at the end of the log. The cursor steps over positions that were lost to damage.

        Raises LogCorrupt where the log does not read as it was written, LogDamaged where the log must leave
        something out first, and NotIndexed where a large old file must be verified first. The cursor is then
        where it was.
        """
        while True:
            run = self.take(want, max_bytes)
            if run is not None:
                return run
            try:
                if self._reader.at < len(self._reader.data):
                    passed = self._pass_deferred()
                    if passed is not None:
                        return passed
                if not self._load():
                    return None
            except LogCorrupt:
                if self._piece is None or not self._piece.stale:
                    raise
                self.let_go()  # another reader has found that out, and the file is to be read again
                continue
            if self._passed is not None:
                passed, self._passed = self._passed, None
                return passed

    def _pass_deferred(self) -> Run | None:
        """Pass over a deferred batch at the cursor, unless its due time does not matter."""
        reader = self._reader
        if reader.remaining or len(reader.data) - reader.at < HEADER.size:
            return None
        magic, _, length, count, position, first_id, _, due = HEADER.unpack_from(reader.data, reader.at)
        if magic != MAGIC:
            raise self._corrupt("no batch begins here")
        if not due or reader.whatever_due:
            return None  # the data end within the batch
        if position != self.position or position + count > self.log.end:
            raise self._corrupt(f"positions {position} to {position + count} where {self.position} follows")
        self.position += count
        reader.at += length
        return Run(position, count, first_id, b"", due)

    def _pass_rest_of_deferred(self, at: int) -> None:
        """Pass over the rest of a batch in whose middle the cursor was set, if that batch is deferred.

        That batch, or one before it, begins at the offset `at` of the data.
        """
        data = self._reader.data
        while True:
            _, _, length, count, first, first_id, _, due = HEADER.unpack_from(data, at)
            if self.position < first + count:
                break
            at += length
        if due:
            skipped = self.position - first
            self._passed = Run(self.position, count - skipped, first_id + skipped, b"", due)
            self.position = first + count
            self._reader.at = at + length
            self._reader.remaining = 0

    def _corrupt(self, what: str) -> LogCorrupt:
        name = str(self._segment.path) if self._segment is not None else "memory"
        return LogCorrupt(name, self._base + self._reader.at, what)

    def _load(self) -> bool:
        """Bring more data to the cursor; False at the end of the log."""
        log = self.log
        if self.position < log.first:
            self.seek(log.first)
        if log.lost:
            self.seek(log.lost.next_gap(self.position))
        if self.position >= log.end:
            return False
        chunk = log.tail.find(self.position)
        if chunk is not None and chunk.data is not self._reader.data:
            self._segment = chunk.segment
            self._piece = None
            self._set_data(chunk.data, chunk.offset)
            if chunk.position != self.position:
                self._find_in_chunk(chunk.data)
            return True
        if self._segment is None:
            return self._locate()
        return self._read_on()

    def _find_in_chunk(self, data: bytes) -> None:
        """Set the cursor within a chunk of the tail."""
        at, remaining, _ = find_message(data, 0, len(data), self.position)
        if at < 0:
            raise self._corrupt(f"no message {self.position}")
        self._set_within(0, at, remaining)

    def _set_within(self, start: int, at: int, remaining: int) -> None:
        """Set the cursor to the offset `at` of the data, in a batch with `remaining` messages to go.

        A batch begins at the offset `start`, at or before it.
        """
        self._reader.at = at
        self._reader.remaining = remaining
        if remaining and not self._reader.whatever_due:
            self._pass_rest_of_deferred(start)

    def _locate(self) -> bool:
        """Find the position by the index of its segment."""
        segment = self.log.segment_at(self.position)
        if segment is None:
            return False
        base = segment.offset_near(self.position)
        piece = segment.recent_piece(base, 0, id(self))
        if piece is not None and self._find_in_piece(piece, base)[0]:
            return True
        size = READ_SIZE
        while True:
            piece = segment.read_piece(base, size, id(self))  # may fail, and the cursor is as it was
            found, needed = self._find_in_piece(piece, base)
            if found:
                return True
            if len(piece.data) < min(size, segment.size - base):
                segment.read(base + len(piece.data), 1)  # raises OSError if that cannot be read
                needed = 0
            if needed <= len(piece.data) or base + needed > segment.size:
                self._set_data(b"", self._base)
                raise LogCorrupt(str(segment.path), base, f"no message {self.position}")
            size = max(2 * size, needed)

    def _find_in_piece(self, piece: ReadPiece, base: int) -> tuple[bool, int]:
        """Set the cursor within a piece of a file, where a batch begins at `base`.

        Returns whether the piece has the message, and else what `find_message` says is needed.
        """
        data = piece.data
        at, remaining, needed = find_message(data, base - piece.base, len(data), self.position)
        if at < 0:
            return False, needed
        self._segment = piece.segment
        self._piece = piece
        self._set_data(data, piece.base)
        self._set_within(base - piece.base, at, remaining)
        return True, 0

    def _read_on(self) -> bool:
        """Go on in the file where the data at hand end, which may be within a message."""
        segment = self._segment
        assert segment is not None
        if segment.openings != (0 if self._piece is None else self._piece.openings):
            self.let_go()  # it may be no part of the log any more, or not be verified
            return self._locate()
        reader = self._reader
        offset = self._base + reader.at
        left = len(reader.data) - reader.at
        if offset >= segment.size:
            following = self.log.segment_after(segment)
            if following is None or reader.remaining or self.position != following.base:
                raise self._corrupt(f"the segment ends before message {self.position}")
            segment, left = following, 0
            offset = segment.offset_near(segment.base)
            self._segment = segment
            self._piece = None
            self._set_data(b"", offset)
        self._read_size = min(2 * self._read_size, MAX_READ_SIZE)
        piece = segment.recent_piece(offset, max(left, 0), id(self))
        if piece is None:
            piece = segment.read_piece(offset, self._size_to_read(), id(self))
            if len(piece.data) <= left:
                raise self._corrupt(f"message {self.position} is cut off")
        self._piece = piece
        reader.data = piece.data  # `remaining` stays: the data may begin within a batch
        reader.at = offset - piece.base
        self._base = piece.base
        return True

    def _size_to_read(self) -> int:
        """Enough for the next message, or for its size. Where all have its size, the read ends with one."""
        reader = self._reader
        at = reader.at if reader.remaining else reader.at + HEADER.size
        needed = at - reader.at + SIZE.size
        if at + SIZE.size > len(reader.data):
            return max(needed, self._read_size)
        needed += int(SIZE.unpack_from(reader.data, at)[0])
        return max(needed, self._read_size - self._read_size % needed)
