"""The next file of a journal, written beside the present one while that is still in use.

A snapshot of very many messages takes seconds, so the topic gathers it in pieces, with turns of the event
loop in between. The journal writes what changes meanwhile to both files, each time behind the pieces gathered
before it. So the new file, read from its beginning, says everything in the order of time, though no part of
it is the state at one moment.

Until the new file is complete and on the disk, its name is not that of a journal. From then on, until the
journal has switched to it, both files say the same.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from nsquark import changes
from nsquark.durable import sync_path, write_all

SUFFIX = ".new"


class JournalCopy:
    def __init__(self, path: Path, generation: int) -> None:
        """Begin the file that will have this path. Raises OSError."""
        self.path = path
        self.generation = generation
        self.size = 0
        self.snapshot_size = 0
        self.error: OSError | None = None
        self._unfinished = path.with_name(path.name + SUFFIX)
        self._is_named = False  # whether it has its path, or is about to get it
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self.fd = os.open(self._unfinished, flags, 0o600)
        # Changes of the file are told by the name that listeners know, which another thread may change.
        self._telling = threading.Lock()
        self._told = self._unfinished
        changes.tell_created(self._unfinished)

    def write(self, block: bytes) -> None:
        """Append a block. When the disk refuses, the copy gives the file up: the old one has everything."""
        if self.error is not None or self.fd < 0:
            return
        try:
            write_all(self.fd, block)
        except OSError as error:
            self.error = error
            self._remove()
        else:
            if changes.listeners:
                with self._telling:
                    changes.tell_appended(self._told, self.size, block)
            self.size += len(block)

    def write_snapshot(self, block: bytes) -> None:
        self.write(block)
        self.snapshot_size += len(block)

    def complete(self, fd: int) -> None:
        """Sync the file by the descriptor `fd`, close that, and give the file its name.

        May run in any thread. Raises OSError.
        """
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._is_named = True
        os.rename(self._unfinished, self.path)  # fails if the file was given up meanwhile
        with self._telling:
            changes.tell_renamed(self._unfinished, self.path)
            self._told = self.path
        sync_path(self.path.parent)

    def give_up(self) -> None:
        """Close and remove the file, whichever name it has by now."""
        if self.fd >= 0:
            self._remove()
            os.close(self.fd)
            self.fd = -1

    def _remove(self) -> None:
        self._unfinished.unlink(missing_ok=True)  # first, so that `complete` cannot rename it from here on
        changes.tell_deleted(self._unfinished)
        if self._is_named:
            self.path.unlink(missing_ok=True)
            changes.tell_deleted(self.path)
