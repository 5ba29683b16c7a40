"""Files and folders that survive a power cut, and folders that change places in one step."""

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

from nsquark.durable import replace_file
from nsquark.durable import sync_path as sync

__all__ = ["can_exchange", "exchange", "make_folder", "remove_tree", "replace_text", "sync"]

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def make_folder(path: Path) -> None:
    """Make a folder and the folders above it."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Write a text file. After a power cut it has either the old text or the new one."""
    replace_file(path, text.encode(), path.with_name(path.name + ".new"))


def remove_tree(path: Path) -> None:
    """Remove a folder as far as possible. The next start removes what is left."""
    shutil.rmtree(path, ignore_errors=True)


def exchange(one: Path, other: Path) -> None:
    """Let two folders change places. No program sees a state in between. Raises OSError."""
    rename = _renameat2()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def can_exchange(folder: Path) -> bool:
    """Whether the file system of `folder` can exchange folders."""
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
    """The function of the C library, which has it on Linux since 2018; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function
