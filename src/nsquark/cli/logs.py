"""Logging of the daemons: NSQ's lines on stderr, and a broker that never waits for their reader.

A line goes into a bounded queue and a thread of its own writes it. When stderr is not drained (a pipe whose
reader stopped) the queue fills up and further lines are dropped; later a line says how many.
When stderr is closed or its reader is gone, logging falls silent and the daemon goes on.

Modules log through `getLogger(__name__)`; only a program's `__main__` calls `set_up`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import select
import sys
import threading
import time
from typing import Final

from .log_forms import Form, format_line, line_of, on_one_line, text_form, timestamp

__all__ = ["LEVELS", "LineHandler", "flush", "format_line", "set_level", "set_up", "timestamp"]

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
# What may wait for a reader. A megabyte is some ten thousand lines.
QUEUE_BYTES: Final = 1 << 20
# What one write takes off the queue.
_WRITE_BYTES: Final = 1 << 16
# How long the end of the process waits for a reader.
FLUSH_TIMEOUT: Final = 1.0

_handler: LineHandler | None = None


def set_up(prefix: str, level: str = "info", fd: int = 2, form: Form = text_form) -> None:
    """Send every log line from here on to `fd`, each begun with `prefix` (its trailing space included).

    May be called again: the new settings replace the old. `form` makes the lines.
    """
    global _handler
    # No line prints its caller, thread or process, so that logging need not look for them.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    if _handler is not None:
        root.removeHandler(_handler)
        _handler.flush()
        _handler.close()
    _handler = LineHandler(prefix, fd, form)
    root.addHandler(_handler)
    set_level(level)


def set_level(level: str) -> None:
    """Log this level (debug, info, warn, error, fatal) and worse; other people's libraries from warn on."""
    number = LEVELS[level]
    logging.getLogger("nsquark").setLevel(number)
    logging.getLogger().setLevel(max(number, logging.WARNING))


def flush(timeout: float = FLUSH_TIMEOUT) -> bool:
    """Wait until everything logged so far is written; False if `timeout` seconds were not enough."""
    return _handler is None or _handler.drain(timeout)


def _encode(line: str) -> bytes:
    # The prefix came from the command line, and goes out byte for byte even if it is no UTF-8.
    return line.encode("utf-8", "surrogateescape") + b"\n"


class LineHandler(logging.Handler):
    """Formats records as lines and hands them to a thread that writes them to a descriptor."""

    def __init__(self, prefix: str, fd: int = 2, form: Form = text_form) -> None:
        super().__init__()
        self.prefix = prefix
        self._form = form
        # What the thread shall do: write these bytes (and for how many lines they stand), tell that it got
        # here, or end.
        self._queue: queue.SimpleQueue[tuple[bytes, int] | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Bytes that went into the queue and came out of it. Each is counted on one side only and needs no
        # lock: `_queued` by emit, which runs under the handler's, `_done` by the thread.
        self._queued = 0
        self._done = 0
        self._dropped = 0
        self._dropped_lock = threading.Lock()
        self._timed_out = False
        self._fd = -1
        # A descriptor of our own: if stderr was closed, its number may by now be a data file's.
        if fd != 2 or sys.stderr is not None:
            with contextlib.suppress(OSError):
                self._fd = os.dup(fd)
        self._broken = self._fd < 0
        self._ended = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._broken or self._ended:
            return
        if self._queued - self._done >= QUEUE_BYTES:
            self._count_dropped(1)
            return
        try:
            text = record.getMessage()
        except Exception as error:  # the caller's format and arguments do not fit each other
            text = f"cannot log {record.msg!r} with {record.args!r}: {error!r}"
        trace: list[str] = []
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info).splitlines()
        line = self._form(self.prefix, record, on_one_line(text), trace)
        dropped = self._take_dropped()
        data = self._notice(dropped) + _encode(line)
        self._queued += len(data)
        self._queue.put((data, dropped + 1))
        if self._thread is None:
            self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._write_queue, name="log writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no threads left, or the interpreter is on its way out
            self._broken = True
        else:
            self._thread = thread

    def _count_dropped(self, lines: int) -> None:
        with self._dropped_lock:
            self._dropped += lines

    def _take_dropped(self) -> int:
        """How many were dropped since the last call. The caller has to tell of them."""
        if not self._dropped:
            return 0
        with self._dropped_lock:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def _notice(self, dropped: int) -> bytes:
        if not dropped:
            return b""
        lines = "1 log line was" if dropped == 1 else f"{dropped} log lines were"
        text = f"{lines} dropped here: stderr did not take them"
        return _encode(line_of(self._form, self.prefix, logging.WARNING, text, time.time()))

    def _write_queue(self) -> None:
        """The thread: take what is there, up to a limit, and write it at once."""
        while True:
            item = self._queue.get()
            batch = []
            size = lines = 0
            while isinstance(item, tuple):
                batch.append(item[0])
                size += len(item[0])
                lines += item[1]
                if size >= _WRITE_BYTES or self._queue.empty():
                    break
                item = self._queue.get()
            written = self._write(b"".join(batch), lines)
            self._done += size
            if written and self._queue.empty():
                # The last lines may have been dropped, and none came after them to bring the notice.
                dropped = self._take_dropped()
                self._write(self._notice(dropped), dropped)
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                os.close(self._fd)
                return

    def _write(self, data: bytes, lines: int) -> bool:
        rest = memoryview(data)
        while rest and not self._broken:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process that shares stderr made it non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EBADF):
                    self._broken = True
                else:  # a full disk, perhaps: it may have room again
                    self._count_dropped(lines)
                return False
        return True

    def drain(self, timeout: float) -> bool:
        """Wait until the queue is written; False if that takes longer than `timeout` seconds.

        A reader that was waited for in vain is given only a moment next time: several parts of a program may
        flush on its way out.
        """
        if self._thread is None or self._broken or self._ended:
            return True
        if self._timed_out:
            timeout = min(timeout, 0.1)
        written = threading.Event()
        self._queue.put(written)
        self._timed_out = not written.wait(timeout)
        return not self._timed_out

    def flush(self) -> None:
        self.drain(FLUSH_TIMEOUT)

    def close(self) -> None:
        """Take no more lines and let the thread end after those it has, without waiting for it."""
        if not self._ended:
            self._ended = True
            if self._thread is not None:
                self._queue.put(None)
            elif self._fd >= 0:
                os.close(self._fd)
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say nothing: logging's own way is to write to stderr at once, and that may block."""
