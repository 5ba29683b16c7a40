"""The next file of a journal, written beside the present one while that goes on.

A snapshot of very many messages takes seconds, so it is gathered in pieces, with turns of the event loop in
between. What changes meanwhile goes to both files, each time behind what was gathered before it. So the new
file, read from its beginning, tells everything in the order of time, though no moment is told as a whole.

Until it is complete and on the disk it has a name under which it is not taken for a journal. From then on,
until the journal has switched to it, both files say the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from nsquark.durable import sync_path

from .syncing import write_all

SUFFIX = ".new"


class JournalCopy:
    def __init__(self, path: Path, generation: int) -> None:
        """Begin the file that is to have this path. Raises OSError."""
        self.path = path
        self.generation = generation
        self.size = 0
        self.snapshot_size = 0
        self.error: OSError | None = None
        self._unfinished = path.with_name(path.name + SUFFIX)
        self._is_named = False  # or about to be
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open(self._unfinished, flags, 0o600)

    def write(self, block: bytes) -> None:
        """Append a block. Where the disk refuses, the file is given up; the old one still has everything."""
        if self.error is not None or self.fd < 0:
            return
        try:
            write_all(self.fd, block)
        except OSError as error:
            self.error = error
            self._remove()
        else:
            self.size += len(block)

    def write_snapshot(self, block: bytes) -> None:
        self.write(block)
        self.snapshot_size += len(block)

    def complete(self, fd: int) -> None:
        """Bring it to the disk, by a descriptor that is closed then, and give it its name. Raises OSError.

        Called in a thread.
        """
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._is_named = True
        os.rename(self._unfinished, self.path)  # fails if it was given up meanwhile
        sync_path(self.path.parent)

    def give_up(self) -> None:
        """Close and remove the file, whatever it is called by now."""
        if self.fd >= 0:
            self._remove()
            os.close(self.fd)
            self.fd = -1

    def _remove(self) -> None:
        self._unfinished.unlink(missing_ok=True)  # first: from here on it cannot be renamed
        if self._is_named:
            self.path.unlink(missing_ok=True)
