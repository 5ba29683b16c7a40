"""stdout, written by a thread: a reader that has stopped (a pager) holds up neither heartbeats nor Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import sys
import threading

from .running import ToolError


class StdoutWriter:
    """Writes bytes to a descriptor, in order. Raises ToolError if the parent process closed stdout."""

    def __init__(self, fd: int = 1) -> None:
        if fd == 1 and sys.stdout is None:  # the number may by now be that of a connection
            raise ToolError("stdout is closed")
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        # A daemon: nothing ends a write that is not read, and the process need not wait for it.
        threading.Thread(target=self._write_all, name="stdout", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Return when the bytes are written. Raises OSError, of which a closed pipe is BrokenPipeError."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((data, written))
        await written

    def _write_all(self) -> None:
        while True:
            data, written = self._queue.get()
            error: OSError | None = None
            try:
                _write(self._fd, data)
            except OSError as raised:
                error = raised
            try:
                self._loop.call_soon_threadsafe(_settle, written, error)
            except RuntimeError:  # the program has ended meanwhile
                return


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # another process that shares stdout made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():  # cancelled
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
