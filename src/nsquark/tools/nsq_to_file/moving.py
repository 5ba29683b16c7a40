"""Moving a finished file from the work directory to the output directory, over nothing that exists.

At any moment one of the two directories has the whole file under a durable name. A kill between the two
leaves both names, and the next run removes the one in the work directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil

from .archive_file import make_directories, sync_directory
from .errors import DiskError, doing

_COPY_BLOCK = 1 << 20


def move(source: str, target: str) -> None:
    """Raises FileExistsError if there is a file `target` already, and DiskError."""
    make_directories(os.path.dirname(target))
    try:
        with doing("link", f"{source} to {target}"):
            os.link(source, target)
    except DiskError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
    sync_directory(os.path.dirname(target))
    with doing("remove", source):
        os.unlink(source)
    sync_directory(os.path.dirname(source))


def is_moved(source: str, target: str) -> bool:
    """Whether both names stand for one file, or for a file and its copy."""
    try:
        old, new = os.stat(source), os.stat(target)
    except FileNotFoundError:
        return False
    if os.path.samestat(old, new):
        return True
    if old.st_dev == new.st_dev or old.st_size != new.st_size:
        return False  # on one file system a moved file has no copy
    with open(source, "rb") as one, open(target, "rb") as other:
        while block := one.read(_COPY_BLOCK):
            if block != other.read(_COPY_BLOCK):
                return False
    return True


def _copy(source: str, target: str) -> None:
    """Make `target` a durable copy, at once and whole. A kill may leave a file whose name ends in `.part`."""
    directory, name = os.path.split(target)
    part = os.path.join(directory, f".{name}.part")
    with doing("copy", f"{source} to {part}"), open(source, "rb") as old:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(fd, "wb") as new:
            fcntl.flock(fd, fcntl.LOCK_EX)  # another nsq_to_file may move a file to the same name
            os.ftruncate(fd, 0)
            shutil.copyfileobj(old, new, _COPY_BLOCK)
            new.flush()
            status = os.fstat(old.fileno())
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(fd)
            try:
                os.link(part, target)
            finally:
                os.unlink(part)
