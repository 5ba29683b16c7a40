"""Writing a segment again, because an fsync of its file has failed: see `syncing`.

The copy has the same bytes at the same offsets, so positions, indexes and cursors stay as they are, and there
is one file of each name before, during and after it: a crash at any moment leaves one of the two.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from nsquark import kernel
from nsquark.durable import write_all

from .ranges import Ranges
from .segment import Segment
from .tail import TailChunk

COPY = ".new"
WINDOW = 1 << 20
SECTOR = 4096
_NO_MARKS = 1 << 62


def copy_segment(
    segment: Segment, chunks: Sequence[TailChunk], folder: int, fsync: Callable[[int], None]
) -> Ranges:
    """Replace the file of a segment by a synced copy; returns the bytes that the copy could not save.

    `chunks` are those of the segment that are still in memory. `folder` is a descriptor of the directory.
    Raises OSError, and the file is what it was.
    """
    name = segment.path.name
    copy_name = segment.path.with_suffix(COPY).name
    lost = Ranges()
    old = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        copy = os.open(copy_name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            for data, offset, whole in _pieces(old, segment.start, segment.size, chunks):
                size = data if isinstance(data, int) else len(data)
                if not whole:
                    lost.add(offset, offset + size)
                if isinstance(data, int):  # a hole, so that everything behind it stays where it is
                    os.lseek(copy, size, os.SEEK_CUR)
                else:
                    write_all(copy, data)
            os.ftruncate(copy, segment.size)
            fsync(copy)
            os.rename(copy_name, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(copy_name, dir_fd=folder)
            raise
        finally:
            os.close(copy)
    finally:
        os.close(old)
    return lost


def _pieces(
    fd: int, start: int, size: int, chunks: Sequence[TailChunk]
) -> Iterator[tuple[bytes | memoryview | int, int, bool]]:
    """All bytes of a file whose last segment begins at `start`, piece by piece: (bytes, offset, whole).

    A piece is a run of whole batches, from the file, or from memory where the file does not have them. Bytes
    that neither has come as they are, and are not whole: the next reader may find whole batches behind the
    damage. What lies before `start` belongs to other segments and to the damage between them.
    """
    for data, offset in _as_it_is(fd, 0, start):
        yield data, offset, not isinstance(data, int)
    offset, window = start, WINDOW
    while offset < size:
        try:
            data = os.pread(fd, min(window, size - offset), offset)
        except OSError:
            data = b""
        stop, needed, _, _ = kernel.scan_batches(data, 0, len(data), True, _NO_MARKS)
        if stop:
            yield memoryview(data)[:stop], offset, True
            offset, window = offset + stop, WINDOW
        elif len(data) == window < needed <= size - offset:
            window = needed
        else:
            chunk = next((each for each in chunks if each.offset + len(each.data) > offset), None)
            if chunk is not None and chunk.offset <= offset:
                rest = memoryview(chunk.data)[offset - chunk.offset :]
                yield rest, offset, True
                offset += len(rest)
            else:
                end = chunk.offset if chunk is not None else size
                for piece, at in _as_it_is(fd, offset, end):
                    yield piece, at, False
                offset = end


def _as_it_is(fd: int, offset: int, end: int) -> Iterator[tuple[bytes | int, int]]:
    """The bytes [offset, end) of a file and where they lie; the number of bytes that cannot be read."""
    while offset < end:
        try:
            data = os.pread(fd, min(WINDOW, end - offset), offset)
        except OSError:
            data = b""
        if not data:
            size = min(SECTOR - offset % SECTOR, end - offset)
            with contextlib.suppress(OSError):
                data = os.pread(fd, size, offset)
            if not data:
                yield size, offset
                offset += size
                continue
        yield data, offset
        offset += len(data)
