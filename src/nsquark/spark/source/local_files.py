"""Reading batches from nsqd's own files, where a task runs on nsqd's machine and may open them.

The task names the boot of its machine with each request. An nsqd that runs there answers with the names of
files in place of their bytes, which spares nsqd the sending and the task the receiving. Every other nsqd
sends the bytes.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from nsquark.net.machine import boot_id

CONTENT_TYPE = "application/vnd.nsquark.log-files+json"

# The URLs of nsqds whose files this process could not read. It does not try again.
_unreadable: set[str] = set()


class LocalReadFailed(Exception):
    """A file that nsqd has named cannot be read here."""


class FilePart(NamedTuple):
    """The bytes [start, stop) of a file, and what tells it from another file of the same name."""

    path: str
    device: int
    inode: int
    start: int
    stop: int


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
    numbers = [count, position, *(number for part in parts for number in part[1:])]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a number is none")
    if not all(type(part.path) is str and part.start < part.stop for part in parts):
        raise ValueError("a file has no name or no bytes")
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
        descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (part.device, part.inode):
            # A file of another mount namespace, or one that has taken the place of a deleted one.
            os.close(descriptor)
            _unreadable.add(self._url)
            raise LocalReadFailed(f"{part.path} is another file here")
        self._descriptor, self._at = descriptor, part.start

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
