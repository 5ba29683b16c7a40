"""Writing a disk queue that Go's nsqd opens."""

from __future__ import annotations

import os
from pathlib import Path

from nsquark.durable import write_all

from .files import QueueMeta, pack_meta
from .records import QueuedMessage, pack_record

_BUFFERED = 128 << 10


class QueueWriter:
    """Writes messages to the files of a new queue. No file is there before the first message."""

    def __init__(self, directory: Path, name: str, max_bytes_per_file: int) -> None:
        self.depth = 0
        self._directory = directory
        self._name = name
        self._max_bytes_per_file = max_bytes_per_file
        self._number = 0
        self._offset = 0
        self._fd = -1
        self._buffer = bytearray()

    def add(self, message: QueuedMessage) -> None:
        """Raises OSError."""
        record = pack_record(message)
        if self._offset and self._offset + len(record) > self._max_bytes_per_file:
            self._close_file()
            self._number, self._offset = self._number + 1, 0
        if self._fd < 0:
            path = self._directory / f"{self._name}.diskqueue.{self._number:06d}.dat"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._buffer += record
        self._offset += len(record)
        self.depth += 1
        if len(self._buffer) >= _BUFFERED:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the metadata; the disk holds the files then. Raises OSError."""
        if not self.depth:
            return
        self._close_file()
        path = self._directory / f"{self._name}.diskqueue.meta.dat"
        meta = QueueMeta(self.depth, 0, 0, self._number, self._offset)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, pack_meta(meta))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _flush(self) -> None:
        write_all(self._fd, self._buffer)
        self._buffer.clear()

    def _close_file(self) -> None:
        self._flush()
        os.fsync(self._fd)
        os.close(self._fd)
        self._fd = -1

    def abandon(self) -> None:
        """Close the file that is open, as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
