"""One open archive file: written, synced, closed. And the directories it is in.

Everything here blocks, and is called in a thread. Every failure is a DiskError.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from nsquark.durable import write_all

from .encoding import Encoder, Plain
from .errors import DiskError, doing

logger = logging.getLogger(__name__)

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has no other
_TAIL_BLOCK = 1 << 16
_JOINED = 1 << 18  # bytes of lines up to which joining them is cheaper
_VECTOR = 500  # lines in one call of writev, which takes 1024 buffers


class ArchiveFile:
    """A file that lines are appended to."""

    def __init__(self, path: str, encoder: Encoder, *, exclusive: bool, cut_torn_json: bool = False) -> None:
        """Open or create it; its entry in the directory is durable afterwards.

        A last line without its end was torn by a kill, and its message was not finished. The line is ended,
        or with `cut_torn_json` cut off if it is no JSON. Raises FileExistsError if the file exists and
        `exclusive` is wanted, and DiskError.
        """
        self.path = path
        self.size = 0  # of the lines, before compression; with what was in the file before
        self.dirty = False  # whether there is something to sync
        self._encoder = encoder
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else os.O_APPEND)
        with doing("open", path):
            self._fd = os.open(path, flags, 0o666)
        try:
            self.alone = self._lock()  # whether no other nsq_to_file writes to it
            with doing("stat", path):
                self.size = os.fstat(self._fd).st_size
            if self.size and self.alone:
                self._mend_tail(cut_torn_json)
            sync_directory(os.path.dirname(path))
        except BaseException:
            os.close(self._fd)
            raise

    def _lock(self) -> bool:
        """Mark the file as one that is written to, until it is closed. False if another writer did so."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("%s is written to by another nsq_to_file too", self.path)
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _mend_tail(self, cut_torn_json: bool) -> None:
        """Keep the next message off a torn last line."""
        with doing("read", self.path):
            if os.pread(self._fd, 1, self.size - 1) == b"\n":
                return
            start, tail = self._last_line() if cut_torn_json else (0, b"")
        if cut_torn_json and not _is_json(tail):
            logger.warning("%s ends with a torn line, which is cut: %d bytes", self.path, self.size - start)
            with doing("truncate", self.path):
                os.ftruncate(self._fd, start)
            self.size = start
        else:
            logger.warning("%s ends with a torn line, which is ended", self.path)
            self._write(b"\n")
            self.size += 1
        self.dirty = True

    def _last_line(self) -> tuple[int, bytes]:
        """Where the last line begins, and what is there of it."""
        start, tail = self.size, b""
        while start > 0:
            begin = max(0, start - _TAIL_BLOCK)
            block = os.pread(self._fd, start - begin, begin)
            newline = block.rfind(b"\n")
            tail = block[newline + 1 :] + tail
            if newline >= 0:
                return begin + newline + 1, tail
            start = begin
        return 0, tail

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines, each with a newline."""
        size = sum(map(len, lines)) + len(lines)
        if size <= _JOINED:
            self._write(self._encoder.add(b"\n".join(lines) + b"\n"))
        elif isinstance(self._encoder, Plain):
            self._write_large(lines)
        else:
            for line in lines:
                self._write(self._encoder.add(line + b"\n"))
        self.size += size
        self.dirty = True

    def _write_large(self, lines: Sequence[bytes]) -> None:
        """Write without joining: large messages are not copied, and one call does not wait between them."""
        for start in range(0, len(lines), _VECTOR):
            buffers = [part for line in lines[start : start + _VECTOR] for part in (line, b"\n")]
            with doing("write", self.path):
                written = os.writev(self._fd, buffers)
            if written < sum(map(len, buffers)):  # interrupted, or the disk is full
                self._write(b"".join(buffers)[written:])

    def _write(self, data: bytes) -> None:
        with doing("write", self.path):
            write_all(self._fd, data)

    def sync(self) -> None:
        """Return when the disk holds everything that was written."""
        if self.dirty:
            self._write(self._encoder.end_member())
            with doing("sync", self.path):
                _fdatasync(self._fd)
            self.dirty = False

    def is_deleted(self) -> bool:
        """Whether the file has no name any more. A file that was renamed has."""
        with doing("stat", self.path):
            return os.fstat(self._fd).st_nlink == 0 and not os.path.lexists(self.path)

    def close(self) -> None:
        """Sync and close. A compressed file without lines gets a member without lines."""
        if not self.size:
            self.dirty = True
        self.sync()
        with doing("close", self.path):
            os.close(self._fd)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def sync_directory(path: str) -> None:
    """Return when the disk holds the names of the files in a directory."""
    with doing("open", path):
        fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with doing("sync", path):
            os.fsync(fd)
    except DiskError as error:
        # Some network file systems sync names by themselves and refuse to be asked.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def make_directories(path: str) -> None:
    """Make a directory and those above it, durably."""
    missing = []
    here = Path(path)
    while not here.exists():
        missing.append(here)
        here = here.parent
    for each in reversed(missing):
        with doing("create directory", str(each)):
            try:
                each.mkdir(0o770)
            except FileExistsError:  # another process was faster
                continue
        sync_directory(str(each.parent))
