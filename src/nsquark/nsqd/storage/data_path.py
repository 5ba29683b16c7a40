"""The data directory: one nsqd at a time, held by a lock on the directory itself."""

from __future__ import annotations

import fcntl
import os

from nsquark.cli.flags import StartError
from nsquark.gotext import format_os_error


def lock_data_path(path: str) -> int:
    """Lock the directory (empty: the working directory) for the life of the process, or until the returned
    descriptor is closed. Raises StartError if it is missing or another nsqd has it.
    """
    path = path or os.getcwd()
    failed = "failed to instantiate nsqd - failed to lock data-path:"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StartError(f"{failed} open {path}: {format_os_error(error)}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StartError(
            f"{failed} cannot flock directory {path} - {format_os_error(error)}"
            " (possibly in use by another instance of nsqd)"
        ) from None
    return fd
