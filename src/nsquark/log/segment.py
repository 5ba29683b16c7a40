"""One file of a topic log: a run of batches, named by the position of the first message.

A segment knows where it lies and how far it is written. The log writes to its newest segment and reads from
all. A file that was damaged makes several segments, one for each run of whole batches: see `damage`.

A segment checks its file once. While it is not `verified`, the first read walks the whole file and compares
the CRC of every batch.

A segment may be in the archive, too (`archived`). Once its file is deleted it is only there, and has a
`store`: then it is verified while the store has its bytes at `path`, and `verify` fetches them.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from nsquark import changes
from nsquark.errors import ArchiveAway, LogDamaged, NsquarkError

from .archived import MOST_MARKS, Archived, Store
from .damage import Damage, Record, keep
from .file_names import parse_stem, with_term
from .recent_reads import RECENT_READS, ReadPiece
from .recovery import Piece, Survey, survey

SUFFIX = ".log"
INDEX_STRIDE = 65536
WINDOW = 1 << 20
NEAR = 8 << 20  # bytes between readers that are likely to want the same
AT_ONCE = 1 << 20  # a file up to this size is walked by the read that needs it; a larger one needs a thread


class NotIndexed(NsquarkError):
    """A read wants a position of a file that must be walked first: call `segment.verify` in a thread."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(str(segment.path))
        self.segment = segment


class OpenFiles:
    """The descriptors for reading segments that were used last, of all logs of the process.

    A channel that reads a long log reads thousands of segments, so the number of descriptors is bounded.
    Opening a file again costs little beside reading from it. Only the event loop's thread may use this.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._descriptors: dict[Segment, int] = {}  # in the order of their last use
        self._used: set[Segment] = set()  # since the last `close_unused`

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
        """Close the files that were not read since the last call. A timer calls this."""
        for segment in self._descriptors.keys() - self._used:
            self.close(segment)
        self._used.clear()

    def _open(self, path: Path) -> int:
        while True:
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                # The process has no descriptor left: this read needs one more than the oldest segment does.
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


OPEN_FILES = OpenFiles()  # one for all logs, as the limit is that of the process


class Segment:
    """A run of whole batches with the positions [base, end), at the offsets [start, size) of its file.

    `marks` is its index: (position, offset) of one batch in each `stride` bytes, as far as `marked_to`.
    """

    __slots__ = (
        "archived", "base", "end", "lost", "marked_to", "marks", "modified", "openings", "path", "pieces",
        "read_from", "reader", "size", "start", "store", "stride", "suspected", "verified",
    )  # fmt: skip

    def __init__(
        self, directory: Path, base: int, path: Path | None = None, start: int = 0, term: int = 0
    ) -> None:
        self.base = self.end = base
        self.path = directory / segment_name(base, term) if path is None else path
        self.start = self.size = self.marked_to = start
        self.stride = INDEX_STRIDE
        self.marks: list[tuple[int, int]] = []
        self.modified = 0.0
        self.openings = 0  # how often the file was to be opened again
        self.reader, self.read_from = 0, -2 * NEAR  # the last reader, and the offset that it read from
        self.verified = True  # this process has written or checked everything that was read from it
        self.suspected = False  # it did not read as it was written after it had been verified
        self.pieces: list[Segment] = []  # if it is damaged: the parts of it that are whole
        self.lost: list[Record] = []  # and the parts that are not
        self.archived: Archived | None = None  # the same bytes in the archive
        self.store: Store | None = None  # if they are nowhere else: what fetches them

    def add(self, position: int, count: int, size: int) -> None:
        """Note that a run of batches with `count` messages has been appended to the file."""
        if self.marked_to == self.size:
            if self.marks:
                mark = self.marks[-1]
                if self.size - mark[1] >= self.stride:
                    self.marks.append((position, self.size))
            else:
                self.marks.append((position, self.size))
            self.marked_to += size
        self.size += size
        self.end = position + count

    def close(self) -> None:
        """Close the file. The next read opens what then lies at `path`, and shares nothing with others."""
        self.openings += 1
        OPEN_FILES.close(self)
        RECENT_READS.forget(self)

    def recent_piece(self, offset: int, known: int, reader: int) -> ReadPiece | None:
        """A piece that another reader has read lately, with more than `known` bytes from `offset` on."""
        piece = RECENT_READS.find(self, offset, known)
        if piece is not None:
            self.reader, self.read_from = reader, offset
        return piece

    def read_piece(self, offset: int, size: int, reader: int) -> ReadPiece:
        """`read`, for this reader and for others that want the same soon.

        A piece is kept for them if another one has read near to it: for a single reader, memory that it has
        just let go of is better for the next read. `reader` is any number that no other reader has.
        """
        piece = ReadPiece(self, offset, self.read(offset, size))
        if reader != self.reader and abs(offset - self.read_from) <= NEAR:
            RECENT_READS.add(piece)
        self.reader, self.read_from = reader, offset
        return piece

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`, and nothing behind the last commit.

        Raises OSError, and NotIndexed for a segment that must be fetched again.
        """
        try:
            fd = OPEN_FILES.descriptor(self)
        except FileNotFoundError:
            self.has_left()
            raise
        return os.pread(fd, min(size, self.size - offset), offset)

    def has_left(self) -> None:
        """There is no file at `path`. Raises NotIndexed if the archive has it."""
        if self.store is not None:
            self.verified = False
            raise NotIndexed(self) from None

    def leave_to(self, store: Store) -> Segment:
        """Be only in the archive from now on; returns a segment for the file, which can be deleted."""
        assert self.archived is not None
        file = Segment(self.path.parent, self.base, self.path, self.start)
        file.size, file.end, file.modified = self.size, self.end, self.modified
        self.close()
        self.store, self.path, self.verified = store, store.path_of(self.archived), False
        return file

    @property
    def file_base(self) -> int:
        """The first position of its file, damaged or not."""
        return _parsed(self.path)[0]

    @property
    def term(self) -> int:
        """The term of the primary that has written the file."""
        return _parsed(self.path)[1]

    @property
    def empty(self) -> bool:
        return self.size <= self.start

    def offset_near(self, position: int) -> int:
        """The offset of a batch at or before the one that holds `position`, at most about a stride away.

        Raises NotIndexed for a large file that is not verified, or not fetched, and LogDamaged.
        """
        if not self.verified:
            if self.store is not None or self.size - self.start > AT_ONCE:
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

        A caller that holds a descriptor of the file passes it as `fd`, as the file may be deleted meanwhile.
        Raises OSError, and LogDamaged once the damage is kept aside: the log must then go on with `pieces`.
        What the archive has, too, is not kept aside: the log goes on with the archive.
        """
        if self.store is not None:
            self._fetch(fd)
            return
        if fd is not None:
            found = self._survey(fd, self.end)
        else:
            with open(self.path, "rb", buffering=0) as file:
                found = self._survey(file.fileno(), self.end)
        damages = found.damages
        if found.whole < self.size or found.end < self.end:
            damages = [*damages, Damage(found.whole, self.size - found.whole, found.end, self.end)]
        if damages:
            if self.archived is None:
                self.lost = [keep(self.path, damage)[0] for damage in damages]
                self.pieces = [self.piece(each) for each in found.pieces]
            raise LogDamaged(str(self.path), damages[0].offset, "a batch is damaged", self)
        if not self.verified:
            # Marks that exist were made when the batches were written, and readers may be using them.
            if self.marked_to < self.size or self.suspected:
                self.marks, self.marked_to = found.pieces[0].marks if found.pieces else [], self.size
            self.verified = True

    def _fetch(self, fd: int | None) -> None:
        """Have the bytes from the archive, unless a caller holds a descriptor of the deleted file."""
        assert self.store is not None
        assert self.archived is not None
        if fd is not None:
            return
        self.store.fetch(self)
        if self.suspected:
            self._look_again(self.store, self.archived)
        elif not self.marks:
            self.marks, self.marked_to = list(self.archived.marks), self.size
        self.verified = True

    def _look_again(self, store: Store, archived: Archived) -> None:
        """Check what was fetched once more because it did not read. Raises ArchiveAway, and OSError.

        It may be suspected again and again: what the archive has is never given up for lost.
        """
        with open(self.path, "rb", buffering=0) as file:
            found = self._survey(file.fileno(), self.end)
        if found.damages or found.whole < self.size or found.end < self.end:
            store.forget(archived)
            raise ArchiveAway(f"{archived.key} does not hold what {archived.file} held")
        self.marks, self.marked_to = found.pieces[0].marks, self.size
        self.suspected = False

    def examine(self, fd: int) -> Survey:
        """Check every byte of it, whether that was done before or not, and find few marks.

        For a thread. Raises OSError.
        """
        stride = max(1, (self.size - self.start) // MOST_MARKS)
        return survey(fd, str(self.path), self.start, self.size, self.base, self.end, WINDOW, stride)

    def _survey(self, fd: int, bound: int | None, known: Iterable[Damage] = ()) -> Survey:
        return survey(
            fd, str(self.path), self.start, self.size, self.base, bound, WINDOW, INDEX_STRIDE, known
        )

    def piece(self, found: Piece) -> Segment:
        """A segment of the same file for a run of its batches, which were checked."""
        piece = Segment(self.path.parent, found.base, self.path, found.start)
        piece.size = piece.marked_to = found.stop
        piece.end, piece.marks, piece.modified = found.end, found.marks, self.modified
        return piece

    def nothing_left(self) -> Segment:
        """A segment without a byte. It keeps the place of a file in the log of which nothing is whole."""
        return Segment(self.path.parent, self.base, self.path, self.size)

    def inspect(self, known: Iterable[Damage] = ()) -> Survey:
        """What of the newest file is whole. Checks every byte, and changes nothing. Raises OSError.

        `known` is the damage in it that was found before.
        """
        with open(self.path, "rb", buffering=0) as file:
            return self._survey(file.fileno(), None, known)

    @classmethod
    def of_archive(cls, archived: Archived, store: Store) -> Segment:
        """A segment that is only in the archive."""
        path = store.path_of(archived)
        segment = Segment(path.parent, archived.base, path, archived.start)
        segment.archived, segment.store = archived, store
        segment.size = segment.marked_to = archived.stop
        segment.end, segment.modified, segment.verified = archived.end, archived.modified, False
        return segment

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
        changes.tell_deleted(self.path)


def segment_name(base: int, term: int) -> str:
    return with_term(f"{base:020d}", term) + SUFFIX


def segments_in(names: Iterable[str]) -> list[tuple[int, int]]:
    """(first position, term) of the segments among these names of files, in the order of the log."""
    stems = (name[: -len(SUFFIX)] for name in names if name.endswith(SUFFIX))
    return sorted(parsed for stem in stems if (parsed := parse_stem(stem)) is not None)


def _parsed(path: Path) -> tuple[int, int]:
    parsed = parse_stem(path.stem)
    assert parsed is not None, path
    return parsed


def _offset_of(mark: tuple[int, int]) -> int:
    return mark[1]
