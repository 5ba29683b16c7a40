"""What this process changes in its data directory, told to those that keep a copy of it.

The code that changes a file tells so after the system call has succeeded, and from the same thread. While
there is no listener, `listeners` is empty, and that is the only thing that is looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Listener(Protocol):
    """Hears of every change of a file, in any thread. It must not raise."""

    def appended(self, path: Path, offset: int, data: bytes | bytearray | memoryview) -> None: ...
    def put(self, path: Path, data: bytes) -> None: ...
    def created(self, path: Path) -> None: ...
    def cut(self, path: Path, size: int) -> None: ...
    def renamed(self, old: Path, new: Path) -> None: ...
    def deleted(self, path: Path) -> None: ...


listeners: list[Listener] = []


def tell_appended(path: Path, offset: int, data: bytes | bytearray | memoryview) -> None:
    for each in tuple(listeners):
        each.appended(path, offset, data)


def tell_put(path: Path, data: bytes) -> None:
    """The file has this content now, and had its old content until then."""
    for each in tuple(listeners):
        each.put(path, data)


def tell_created(path: Path) -> None:
    """The file is there, and empty."""
    for each in tuple(listeners):
        each.created(path)


def tell_cut(path: Path, size: int) -> None:
    """The file has lost everything behind the first `size` bytes."""
    for each in tuple(listeners):
        each.cut(path, size)


def tell_renamed(old: Path, new: Path) -> None:
    for each in tuple(listeners):
        each.renamed(old, new)


def tell_deleted(path: Path) -> None:
    """The file is gone, or the folder with all that was in it."""
    for each in tuple(listeners):
        each.deleted(path)
