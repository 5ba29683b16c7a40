"""A disk that can refuse an fsync, and be cut off from its power.

It behaves as Linux does: a failed fsync drops what it could not write, and the file looks as it did before.
Only what a later write adds is brought to the disk by a later fsync.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest


class Disk:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.refuses: Callable[[str], bool] = lambda path: False  # asked at each fsync
        self.asked: list[str] = []
        self._files: dict[int, bytes] = {}  # by inode
        self._handled: dict[int, int] = {}  # bytes of it that no fsync will look at again
        self._folders: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()
        self._held: list[int] = []  # so that no inode comes back
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "fdatasync", self.fsync)

    def fsync(self, fd: int) -> None:
        with self._lock:
            path = os.readlink(f"/proc/self/fd/{fd}")
            self.asked.append(path)
            found = os.fstat(fd)
            refused = self.refuses(path)
            if stat.S_ISDIR(found.st_mode):
                if not refused:
                    self._folders[path] = {
                        entry.name: entry.inode() for entry in os.scandir(path) if entry.is_file()
                    }
            else:
                self._sync_file(fd, found.st_ino, refused)
            if refused:
                raise OSError(errno.EIO, "Input/output error")

    def _sync_file(self, fd: int, inode: int, refused: bool) -> None:
        if inode not in self._files:
            self._files[inode] = b""
            self._held.append(os.dup(fd))
        handled = self._handled.get(inode, 0)
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            content = file.read()
        if not refused:
            self._files[inode] = self._files[inode].ljust(handled, b"\0") + content[handled:]
        self._handled[inode] = len(content)

    def cut_power(self, folder: Path, into: Path) -> None:
        """Make `into` what the disk has of a folder."""
        into.mkdir(parents=True)
        for name, inode in self._folders.get(str(folder), {}).items():
            (into / name).write_bytes(self._files.get(inode, b""))

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()
