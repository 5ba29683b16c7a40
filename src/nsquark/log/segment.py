"""One file of a topic log: a run of batches, named by the position of the first message.

A segment knows where it lies and how far it is written. The newest one is written to; all can be read. A file
that was damaged is several segments, one for each run of whole batches: see `damage`.

What was read from a file is checked once: a segment that is not `verified` is walked before anything is read
from it, with the CRC of every batch.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from pathlib import Path

from nsquark import kernel
from nsquark.errors import LogDamaged, NsquarkError

from .damage import Damage, Record, keep
from .recovery import Piece, Survey, survey

SUFFIX = ".log"
INDEX_STRIDE = 65536
WINDOW = 1 << 20
AT_ONCE = 1 << 20  # a file of this size is indexed by whoever needs it; a larger one would hold up the rest


class NotIndexed(NsquarkError):
    """A position was asked for in a file that must be walked first: `segment.verify`, in a thread."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(str(segment.path))
        self.segment = segment


class OpenFiles:
    """Descriptors to read segments with: those that were used last, of all logs of the process.

    A channel that reads a long log comes by thousands of segments, so their number must not follow from that.
    Opening a file costs little beside reading from it. For the event loop only.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._descriptors: dict[Segment, int] = {}  # the one that was used last is the last
        self._used: set[Segment] = set()  # since `close_unused`

    def descriptor(self, segment: Segment) -> int:
        """Raises OSError if the file cannot be opened."""
        fd = self._descriptors.pop(segment, -1)
        if fd < 0:
            while len(self._descriptors) >= self._limit:
                self._close_oldest()
            fd = self._open(segment.path)
        self._descriptors[segment] = fd
        self._used.add(segment)
        return fd

    def close_unused(self) -> None:
        """Close the files that were not read since the last call. Called now and then."""
        for segment in self._descriptors.keys() - self._used:
            self.close(segment)
        self._used.clear()

    def _open(self, path: Path) -> int:
        while True:
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                # Where the process has no descriptor left, one of these is put to better use.
                if error.errno != errno.EMFILE or not self._descriptors:
                    raise
                self._close_oldest()

    def _close_oldest(self) -> None:
        os.close(self._descriptors.pop(next(iter(self._descriptors))))

    def close(self, segment: Segment) -> None:
        self._used.discard(segment)
        fd = self._descriptors.pop(segment, -1)
        if fd >= 0:
            os.close(fd)


OPEN_FILES = OpenFiles()  # one for all logs: the process has one limit


class Segment(kernel.Extent):
    """`marks` are its index: (position, offset) of a batch in each INDEX_STRIDE bytes.

    It begins at offset `start` of its file, and `size` is the offset at which it ends.
    """

    __slots__ = ("base", "lost", "modified", "path", "pieces", "start", "suspected", "verified")

    def __init__(self, directory: Path, base: int, path: Path | None = None, start: int = 0) -> None:
        super().__init__(base, INDEX_STRIDE)
        self.base = base
        self.path = directory / f"{base:020d}{SUFFIX}" if path is None else path
        self.start = self.size = self.marked_to = start
        self.modified = 0.0
        self.verified = True  # nothing was read from it that this process has not written or checked
        self.suspected = False  # it did not read as it was written after it had been verified
        self.pieces: list[Segment] = []  # where it is damaged: what is left of it
        self.lost: list[Record] = []  # and what is not

    def close(self) -> None:
        OPEN_FILES.close(self)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`, never beyond what has been committed."""
        return os.pread(OPEN_FILES.descriptor(self), min(size, self.size - offset), offset)

    @property
    def file_base(self) -> int:
        """The first position of its file, damaged or not."""
        return int(self.path.stem)

    @property
    def empty(self) -> bool:
        return self.size <= self.start

    def offset_near(self, position: int) -> int:
        """The offset of a batch at or before the one that holds `position`, at most about a stride away.

        Raises NotIndexed for a large file that nobody has looked into yet, and LogDamaged.
        """
        if not self.verified:
            if self.size - self.start > AT_ONCE:
                raise NotIndexed(self)
            self.verify()
        at = bisect_right(self.marks, (position, self.size)) - 1
        return self.marks[at][1] if at >= 0 else self.start

    def mark_before(self, position: int, offset: int) -> tuple[int, int]:
        """(position, offset) of a batch that begins at or before both, near to one of them."""
        index = self.marks
        at = min(bisect_right(index, (position, self.size)), bisect_right(index, offset, key=_offset_of)) - 1
        return index[at] if at >= 0 else (self.base, self.start)

    def verify(self, fd: int | None = None) -> None:
        """Walk the whole file, which must not be written to any more. May run in any thread.

        `fd` is a descriptor of the file for those who have one: it may be deleted meanwhile. Raises OSError,
        and LogDamaged once the damage is kept aside: the log must then go on with `pieces`.
        """
        if fd is not None:
            found = self._survey(fd, self.end)
        else:
            with open(self.path, "rb", buffering=0) as file:
                found = self._survey(file.fileno(), self.end)
        damages = found.damages
        if found.whole < self.size or found.end < self.end:
            damages = [*damages, Damage(found.whole, self.size - found.whole, found.end, self.end)]
        if damages:
            self.lost = [keep(self.path, damage)[0] for damage in damages]
            self.pieces = [self.piece(each) for each in found.pieces]
            raise LogDamaged(str(self.path), damages[0].offset, "a batch is damaged", self)
        if not self.verified:
            # Marks that are there were made when the batches were written, and readers may be using them.
            if self.marked_to < self.size or self.suspected:
                self.marks, self.marked_to = found.pieces[0].marks if found.pieces else [], self.size
            self.verified = True

    def _survey(self, fd: int, bound: int | None) -> Survey:
        return survey(fd, str(self.path), self.start, self.size, self.base, bound, WINDOW, INDEX_STRIDE)

    def piece(self, found: Piece) -> Segment:
        """A segment of the same file for some of its batches, which were checked."""
        piece = Segment(self.path.parent, found.base, self.path, found.start)
        piece.size = piece.marked_to = found.stop
        piece.end, piece.marks, piece.modified = found.end, found.marks, self.modified
        return piece

    def inspect(self) -> Survey:
        """What of the newest file is whole. Checks every byte, and changes nothing. Raises OSError."""
        with open(self.path, "rb", buffering=0) as file:
            return self._survey(file.fileno(), None)

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _offset_of(mark: tuple[int, int]) -> int:
    return mark[1]
