"""One file of a topic log: a run of batches, named by the position of the first message.

A segment knows where it lies and how far it is written. The newest one is written to; all can be read.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from pathlib import Path

from nsquark import kernel
from nsquark.errors import NsquarkError

SUFFIX = ".log"
INDEX_STRIDE = 65536
WINDOW = 1 << 20
AT_ONCE = 1 << 20  # a file of this size is indexed by whoever needs it; a larger one would hold up the rest


class NotIndexed(NsquarkError):
    """A position was asked for in a file that must be walked first: `segment.build_index`, in a thread."""

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
    """`marks` are its index: (position, offset) of a batch in each INDEX_STRIDE bytes."""

    __slots__ = ("base", "modified", "path")

    def __init__(self, directory: Path, base: int) -> None:
        super().__init__(base, INDEX_STRIDE)
        self.base = base
        self.path = directory / f"{base:020d}{SUFFIX}"
        self.modified = 0.0

    def close(self) -> None:
        OPEN_FILES.close(self)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`, never beyond what has been committed."""
        return os.pread(OPEN_FILES.descriptor(self), min(size, self.size - offset), offset)

    @property
    def indexed(self) -> bool:
        return self.marked_to >= self.size

    def offset_near(self, position: int) -> int:
        """The offset of a batch at or before the one that holds `position`, at most about a stride away.

        Where the file does not read as it was written, it is the last one before that. Raises NotIndexed for
        a large file of an earlier process that nobody has looked into yet.
        """
        if not self.indexed:
            if position <= self.base:
                return 0
            if self.size > AT_ONCE:
                raise NotIndexed(self)
            self.build_index()
        at = bisect_right(self.marks, (position, self.size)) - 1
        return self.marks[at][1] if at >= 0 else 0

    def mark_before(self, position: int, offset: int) -> tuple[int, int]:
        """(position, offset) of a batch that begins at or before both, near to one of them."""
        index = self.marks
        at = min(bisect_right(index, (position, self.size)), bisect_right(index, offset, key=_offset_of)) - 1
        return index[at] if at >= 0 else (self.base, 0)

    def build_index(self, fd: int | None = None) -> None:
        """Walk the whole file, which must not be written to any more. May run in any thread.

        `fd` is a descriptor of the file for those who have one: it may be deleted meanwhile.
        """
        if fd is not None:
            index, _, _, _ = self._scan(fd, verify=False)
        else:
            with open(self.path, "rb", buffering=0) as file:
                index, _, _, _ = self._scan(file.fileno(), verify=False)
        self.marks, self.marked_to = index, self.size

    def _scan(self, fd: int, verify: bool) -> tuple[list[tuple[int, int]], list[kernel.Batch], int, int]:
        """Walk the batches from the beginning; returns (index, deferred ones, next position, stop)."""
        index: list[tuple[int, int]] = []
        deferred: list[kernel.Batch] = []
        size, offset, window, position = self.size, 0, WINDOW, self.base
        while offset < size:
            data = os.pread(fd, min(window, size - offset), offset)
            stop, needed, marks, last = kernel.scan_batches(data, 0, len(data), verify, INDEX_STRIDE)
            for mark in marks:
                index.append((mark[3], offset + mark[0]))
                if mark[6]:
                    deferred.append(mark)
            if last is not None:
                position = last[3] + last[2]
            offset += stop
            if needed == 0 or offset + needed > size or not data:
                break
            window = max(WINDOW, needed)
        return index, deferred, position, offset

    def recover(self) -> list[kernel.Batch]:
        """Find out how much of the file is whole, and cut off the rest. Returns its deferred batches.

        Reads and checks every byte, so it is for the newest segment only.
        """
        self.size = os.stat(self.path).st_size
        with open(self.path, "rb", buffering=0) as file:
            self.marks, deferred, self.end, whole = self._scan(file.fileno(), verify=True)
        if whole < self.size:
            os.truncate(self.path, whole)
            self.size = whole
        self.marked_to = whole
        return deferred

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def _offset_of(mark: tuple[int, int]) -> int:
    return mark[1]
