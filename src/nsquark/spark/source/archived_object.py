"""Reading batches from nsqd's archive, where a position is only there and the task may open the archive.

The task says with each request that it reads archives. nsqd then names the object that has the messages, in
place of their bytes. That spares nsqd fetching and sending them. The task opens the archive by the URL that
nsqd tells, or by the one of the option `archive.url`, and with its own credentials. If it cannot, it asks
nsqd for the bytes.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

CONTENT_TYPE = "application/vnd.nsquark.log-archive+json"
NEVER = "none"  # as the option: nsqd sends the bytes
_FAILURES = (OSError, pa.ArrowException)
_SECRET = re.compile("secret|key|token|pass|pwd|credential|sig", re.IGNORECASE)


class ArchiveReadFailed(Exception):
    """An object of the archive cannot be read here, or does not hold what nsqd says."""


class ObjectPart(NamedTuple):
    """The bytes [start, stop) of an object. They hold whole batches, and the messages that were asked for."""

    url: str
    object: str
    size: int
    start: int
    stop: int


def has_secret(url: str) -> bool:
    """Whether a URL seems to hold credentials, which others would see."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    return ":" in parts.netloc.rpartition("@")[0] or any(
        _SECRET.search(name) or "@" in value for name, value in query
    )


def asking_for_objects(option: str) -> dict[str, Any]:
    """What a request says, so that nsqd may name objects of its archive."""
    return {} if option == NEVER else {"archive": 1}


def parse_object(told: Any, option: str) -> tuple[int, int, ObjectPart]:
    """The number of messages, the position of the first one, and where they are. Raises ValueError.

    `option` is a URL in place of the one that nsqd tells.
    """
    try:
        count, position = told["count"], told["position"]
        part = ObjectPart(option or told["url"], *(told[name] for name in ObjectPart._fields[1:]))
    except (KeyError, TypeError):
        raise ValueError("a part of it is missing") from None
    if not all(type(each) is int and each >= 0 for each in (count, position, *part[2:])):
        raise ValueError("a number is none")
    if type(part.url) is not str or type(part.object) is not str or not part.start < part.stop <= part.size:
        raise ValueError("an object has no name or no bytes")
    if any(name in ("", ".", "..") for name in part.object.split("/")):
        raise ValueError("an object lies outside the archive")
    return count, position, part


class ArchivedObject:
    """The bytes of a part of an object. The caller closes it."""

    exact = False  # there may be whole batches before and behind the messages that are wanted

    def __init__(self, part: ObjectPart) -> None:
        """Raises ArchiveReadFailed."""
        self.unread = part.stop - part.start
        self._part = part
        try:
            files, root = _open(part.url)
            self._file = files.open_input_file(f"{root}/{part.object}")
            if self._file.size() != part.size:
                raise self.failed(f"has {self._file.size()} bytes, not {part.size}")
            self._file.seek(part.start)
        except _FAILURES as error:
            raise self.failed(str(error)) from None

    def read_into(self, buffer: memoryview) -> None:
        """Fill the whole buffer. Raises ArchiveReadFailed."""
        try:
            while buffer:
                size = self._file.readinto(buffer)
                if not size:
                    raise self.failed("is shorter than it was")
                buffer = buffer[size:]
                self.unread -= size
        except _FAILURES as error:
            raise self.failed(str(error)) from None

    def failed(self, what: str) -> ArchiveReadFailed:
        return ArchiveReadFailed(f"{self._part.object} of the archive: {' '.join(what.split())[:300]}")

    def close(self) -> None:
        self._file.close()


@functools.lru_cache(16)
def _open(url: str) -> tuple[Any, str]:
    """The file system of an archive, and its path there: opened once in a process."""
    files, path = fs.FileSystem.from_uri(url)
    return files, path.rstrip("/")
