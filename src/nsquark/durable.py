"""Files that survive a power cut: a reader finds the old content or the new one, and nothing in between."""

from __future__ import annotations

import os
from pathlib import Path

from nsquark import changes


def replace_file(path: Path, data: bytes, temporary: Path, mode: int = 0o666) -> None:
    """Write a file beside `path`, sync it, and rename it to `path`; returns when the disk holds it.

    `temporary` is the file beside it, which a crash may leave. Raises OSError: `path` is then what it was,
    unless only the sync of its directory has failed.
    """
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    changes.tell_put(path, data)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Have the disk hold a file, or what a directory says of the files in it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of it, in as many pieces as the disk takes. Raises OSError, and some of it may be written."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])
