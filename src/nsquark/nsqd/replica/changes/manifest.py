"""Which files a data directory has and how long they are, and pieces of them, for a follower's first copy."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import NamedTuple

from nsquark import kernel

from .frames import BadFrame, is_copied

WINDOW = 1 << 20  # bytes before an offset that must be the same on both sides


class Manifest(NamedTuple):
    """What a primary tells about its directory: the size of each file is at least that at `sequence`."""

    node: str
    term: int
    stream: str
    sequence: int
    files: dict[str, int]


def parse_manifest(body: bytes) -> Manifest:
    """Raises BadFrame for what is no manifest, or one that names files which no node has."""
    try:
        told = json.loads(body)
        node, term, stream, sequence, files = (told[name] for name in Manifest._fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadFrame(f"no manifest: {body[:200]!r}") from None
    numbers = (term, sequence, *(files.values() if isinstance(files, dict) else (-1,)))
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
        raise BadFrame(f"no manifest: {body[:200]!r}")
    if not isinstance(node, str) or not isinstance(stream, str):
        raise BadFrame(f"no manifest: {body[:200]!r}")
    if not all(map(is_copied, files)):
        raise BadFrame("the manifest names files that no node has")
    return Manifest(node, term, stream, sequence, files)


def list_files(directory: Path) -> dict[str, int]:
    """The sizes of all files that are copied, by their paths. For a thread. Raises OSError."""
    found: dict[str, int] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(directory / folder))
        except FileNotFoundError:  # deleted meanwhile
            continue
        for entry in entries:
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                if path in ("topics", "staged") or is_copied(path):
                    folders.append(path + "/")
            elif entry.is_file(follow_symlinks=False) and is_copied(path):
                try:
                    found[path] = entry.stat().st_size
                except FileNotFoundError:
                    continue
    return found


def read_piece(path: Path, offset: int, size: int) -> bytes:
    """For a thread. Raises OSError, also for what `list_files` passes over."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOENT, "no regular file", str(path))
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def crc_before(path: Path, offset: int) -> int:
    """The CRC-32C of the last bytes before an offset. For a thread. Raises OSError."""
    data = read_piece(path, max(0, offset - WINDOW), min(offset, WINDOW))
    return kernel.crc32c(data, 0, len(data))
