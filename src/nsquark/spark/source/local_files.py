"""Reading batches from nsqd's own files, where a task runs on nsqd's machine and may open them.

The task names the boot of its machine with each request. An nsqd that runs there answers with the names of
files in place of their bytes, which spares nsqd the sending and the task the receiving. Every other nsqd
sends the bytes.
"""

from __future__ import annotations

import os
import stat
from typing import Any, NamedTuple

from nsquark.kernel.pure import HEADER
from nsquark.net.machine import boot_id

CONTENT_TYPE = "application/vnd.nsquark.log-files+json"
_MAX_NUMBER = 1 << 63  # what the system takes for an offset

# The URLs of nsqds whose files this process could not read. It does not try again.
_unreadable: set[str] = set()


class LocalReadFailed(Exception):
    """A file that nsqd has named cannot be read here."""


class FilePart(NamedTuple):
    """The bytes [start, stop) of a file, and what tells it from another file of the same name.

    The last batch of the bytes begins at `last`, and `header` is its header in hex. Another log may have got
    the name and the inode of a deleted file, but no batch with this position, time and CRC.
    """

    path: str
    device: int
    inode: int
    start: int
    stop: int
    last: int
    header: str


def asking_for_files(url: str) -> dict[str, Any]:
    """What a request says, so that nsqd may name its files."""
    return {"local": boot_id()} if boot_id() and url not in _unreadable else {}


def parse_files(told: Any) -> tuple[int, int, list[FilePart]]:
    """The number of messages, the position of the first one, and where they lie. Raises ValueError."""
    try:
        count, position = told["count"], told["position"]
        parts = [FilePart(*(each[name] for name in FilePart._fields)) for each in told["files"]]
    except (KeyError, TypeError):
        raise ValueError("a part of it is missing") from None
    numbers = [count, position, *(number for part in parts for number in part[1:-1])]
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers):
        raise ValueError("a number is none")
    for part in parts:
        if not (type(part.path) is str and os.path.isabs(part.path) and "\0" not in part.path):
            raise ValueError("a file has no name")
        if not part.start <= part.last <= part.stop - HEADER.size:
            raise ValueError("a file has no batch")
        if not (type(part.header) is str and len(bytes.fromhex(part.header)) == HEADER.size):
            raise ValueError("a batch has no header")
        os.fsencode(part.path)
    return count, position, parts


class LocalFiles:
    """The bytes of several files, one after the other. The caller closes it."""

    exact = True

    def __init__(self, url: str, parts: list[FilePart]) -> None:
        self._url = url
        self._parts = parts
        self._descriptor = -1
        self._at = 0
        self.unread = sum(part.stop - part.start for part in parts)

    def read_into(self, buffer: memoryview) -> None:
        """Fill the whole buffer. Raises LocalReadFailed."""
        try:
            while buffer:
                if self._descriptor < 0:
                    self._open(self._parts[0])
                part = self._parts[0]
                size = os.preadv(self._descriptor, [buffer[: part.stop - self._at]], self._at)
                if not size:
                    raise LocalReadFailed(f"{part.path} is shorter than nsqd says")
                buffer = buffer[size:]
                self._at += size
                self.unread -= size
                if self._at == part.stop:
                    self.close()
                    del self._parts[0]
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # which may just have been deleted
                _unreadable.add(self._url)
            raise LocalReadFailed(str(error)) from None

    def _open(self, part: FilePart) -> None:
        # First without opening what lies there: opening a device or a pipe may do something.
        found = os.open(part.path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != part[1:3]:
                raise self._another(part)  # of another mount namespace, or in the place of a deleted one
            descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(found)
        self._descriptor, self._at = descriptor, part.start
        if os.pread(descriptor, HEADER.size, part.last) != bytes.fromhex(part.header):
            raise self._another(part)

    def _another(self, part: FilePart) -> LocalReadFailed:
        _unreadable.add(self._url)
        return LocalReadFailed(f"{part.path} is another file here")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
