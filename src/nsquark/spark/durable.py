"""Writing files so that a power cut leaves either the old content or the new one."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ".new"  # of a file that is not yet complete


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file and return when it is on disk. A reader sees the whole of it, or what was there before."""
    new = path.with_name(path.name + SUFFIX)
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)
