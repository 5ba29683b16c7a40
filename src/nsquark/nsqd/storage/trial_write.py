"""Whether the disk takes messages again, which a file beside the logs tells.

A log that could not be written makes `/ready` send clients elsewhere. Then no publish may come that would
show that the cause is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from nsquark.durable import write_all

from .syncer import Syncer

FILE_NAME = "nsqd.dat.trial.tmp"  # a start deletes it, if a crash has left it
SIZE = 64 << 10


class TrialWrite:
    """Writes, syncs and deletes a file, in the thread of the syncer."""

    def __init__(self, folder: Path, syncer: Syncer, works: Callable[[], None]) -> None:
        """`works` is called on the event loop when the disk has taken the file."""
        self._path = folder / FILE_NAME
        self._syncer = syncer
        self._works = works
        self._under_way = False

    def begin(self) -> None:
        """Try it, unless that is under way. A failure is told to nobody: the problem is known already."""
        if not self._under_way:
            self._under_way = True
            self._syncer.run_then(self._write, self._done)

    def _write(self) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, bytes(SIZE))
            os.fsync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _done(self, error: OSError | None) -> None:
        self._under_way = False
        if error is None:
            self._works()
