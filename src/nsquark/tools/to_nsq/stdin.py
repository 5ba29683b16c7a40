"""Reading stdin without waiting in the event loop, whatever stdin is: a pipe, a file, a terminal.

A thread reads what is there, up to `READ` bytes, so that a line from a slow program is published at once and
a fast one is read in large pieces. The thread is at most two reads ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import threading
from collections import deque
from typing import Final

READ: Final = 256 << 10
_PIPE: Final = 1 << 20  # the size asked for, so that the program before us waits less
_AHEAD: Final = 2


class Input:
    """Reads a descriptor. `abandon` ends it early."""

    def __init__(self, fd: int = 0) -> None:
        self.abandoned = False
        self.ended = False  # everything was handed out
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._read: deque[bytes | OSError] = deque()
        self._arrived = asyncio.Event()
        self._wanted = threading.Semaphore(_AHEAD)
        _widen(fd)
        # A daemon: nothing ends a read of a terminal, and the process need not wait for it.
        threading.Thread(target=self._read_all, name="stdin", daemon=True).start()

    def _read_all(self) -> None:
        data: bytes | OSError = b""
        while True:
            self._wanted.acquire()
            try:
                data = _read_some(self._fd)
            except OSError as error:
                data = error
            try:
                self._loop.call_soon_threadsafe(self._put, data)
            except RuntimeError:  # the program has ended meanwhile
                return
            if not data or isinstance(data, OSError):
                return

    def _put(self, data: bytes | OSError) -> None:
        self._read.append(data)
        self._arrived.set()

    async def read(self) -> bytes:
        """The next bytes; none at the end, and after `abandon`. Raises OSError."""
        while not self._read and not self.abandoned:
            self._arrived.clear()
            await self._arrived.wait()
        if self.abandoned or self.ended:
            return b""
        data = self._read[0]
        if isinstance(data, OSError):
            raise data
        if data:
            self._read.popleft()
            self._wanted.release()
        else:
            self.ended = True
        return data

    def abandon(self) -> None:
        """Hand out nothing more."""
        self.abandoned = True
        self._arrived.set()


def _read_some(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, READ)
        except BlockingIOError:  # another process that shares stdin made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll()


def _widen(fd: int) -> None:
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # no pipe, or more than this user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE)
