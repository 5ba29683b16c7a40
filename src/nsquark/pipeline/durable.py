"""Files and folders that are there after a power cut, and folders that change places at once."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def sync(path: Path) -> None:
    """A file, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """With those above it."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def replace_text(path: Path, text: str) -> None:
    """The whole of it or the old one, whatever happens."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync(path.parent)


def remove_tree(path: Path) -> None:
    """What cannot be removed now is removed at the next start."""
    shutil.rmtree(path, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Two folders change places; nobody sees a moment in between. Raises OSError."""
    rename = _renameat2()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def can_exchange(folder: Path) -> bool:
    """Whether the file system of `folder` can do that."""
    one, other = folder / "exchange.one", folder / "exchange.other"
    try:
        one.mkdir(exist_ok=True)
        other.mkdir(exist_ok=True)
        exchange(one, other)
        return True
    except OSError:
        return False
    finally:
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.rmdir()


@functools.cache
def _renameat2() -> Any:
    """Linux has it, and its C library has a name for it since 2018."""
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
