"""What is unread in a disk queue, message by message, over all its files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .files import QueueFiles
from .records import LEAST, RECORD, MessageFinder, QueuedMessage, Unreadable

MOST_BYTES = 16 << 20  # of a body that is read, also where --max-msg-size is smaller than it was


class Place(NamedTuple):
    """A file of a queue, by its number, and an offset in it."""

    file: int
    offset: int


class QueueReader:
    """Reads a queue from where Go's nsqd has left it, or from a place on.

    `head` is the next message; None at the end. `place` is where the head begins: a reader that is made with
    it goes on there.
    """

    def __init__(
        self,
        files: QueueFiles,
        max_msg_size: int,
        tell: Callable[[Path, Unreadable], None],
        place: Place | None = None,
    ) -> None:
        """`tell` is called for bytes that do not read, before any message behind them. Raises OSError."""
        self.files = files
        self._largest = max(max_msg_size, MOST_BYTES) + LEAST
        self._tell = tell
        self._unread = [Place(*each) for each in files.unread()]
        if place is not None:
            later = [each for each in self._unread if each.file > place.file]
            self._unread = [place, *later] if place.file in files.data else later
        self._fd = -1
        self._number = -1
        self._finder: MessageFinder | None = None
        self._told = 0
        self._end = Place(max(files.data, default=-1) + 1, 0)
        self.place = self._end
        self.head: QueuedMessage | None = None
        self.advance()

    @property
    def bytes_left(self) -> int:
        """The bytes behind the head that are unread."""
        files = self.files
        later = sum(files.sizes[each.file] - each.offset for each in self._unread)
        return later + (files.sizes[self._number] - self._finder.offset if self._finder is not None else 0)

    def advance(self) -> None:
        """Go on to the next message. Raises OSError."""
        while True:
            if self._finder is None and not self._open():
                self.head = None
                self.place = self._end
                return
            assert self._finder is not None
            message = self._finder.next()
            self._tell_new()
            if message is not None:
                self.head = message
                self.place = Place(self._number, self._finder.offset - RECORD.size - len(message.body))
                return
            self.close()

    def _open(self) -> bool:
        if not self._unread:
            return False
        self._number, offset = self._unread.pop(0)
        self._fd = os.open(self.files.data[self._number], os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(self._fd).st_size
        self._finder = MessageFinder(self._fd, offset, size, self._largest)
        self._told = 0
        return True

    def _tell_new(self) -> None:
        assert self._finder is not None
        for each in self._finder.unreadable[self._told :]:
            # A crash cuts off the last write to the newest file. Elsewhere it is damage.
            torn = each.torn and self._number == max(self.files.data)
            self._tell(self.files.data[self._number], each._replace(torn=torn))
        self._told = len(self._finder.unreadable)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._finder = None
