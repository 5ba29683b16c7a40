"""The messages that `nsquark pub` publishes: words, lines of files or of stdin, whole files.

A thread reads, since a terminal, a pipe or a slow disk takes its time; it is never more than a few pieces
ahead of the event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from ..failures import Failure

_PIECE: Final = 1 << 18
_AHEAD: Final = 4  # pieces that the thread may be ahead


class Lines:
    """Lines of files, `-` for stdin, in runs; with `whole`, each file is one message. Empty ones are passed.

    `read_bytes` is how much was read, of `total_bytes` if that is known.
    """

    def __init__(self, paths: Sequence[str], *, whole: bool = False, max_size: int = 1 << 30) -> None:
        self._paths = paths
        self._whole = whole
        self._max_size = max_size
        self.read_bytes = 0
        self.empty = 0
        self.total_bytes = self._total()

    def _total(self) -> int | None:
        try:
            return None if "-" in self._paths else sum(os.path.getsize(path) for path in self._paths)
        except OSError:
            return None  # opening it will say why

    async def runs(self) -> AsyncIterator[list[bytes]]:
        """Raises Failure naming the file that cannot be read, or holds a message that is too large."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue()
        ahead = threading.Semaphore(_AHEAD)

        def hand_over(item: list[bytes] | BaseException | None) -> None:
            ahead.acquire()
            loop.call_soon_threadsafe(queue.put_nowait, item)

        def read() -> None:
            try:
                for run in self._read():
                    hand_over(run)
                hand_over(None)
            except (OSError, Failure) as error:
                hand_over(error)
            except RuntimeError:
                return  # the event loop has ended

        # A daemon: it may stand in a read when everything else has ended.
        threading.Thread(target=read, name="reader", daemon=True).start()
        while (item := await queue.get()) is not None:
            ahead.release()
            if isinstance(item, BaseException):
                raise item
            yield item

    # ---- in the thread

    def _read(self) -> Iterator[list[bytes]]:
        for path in self._paths:
            name = "stdin" if path == "-" else path
            try:
                fd = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
                try:
                    yield from self._messages(fd, name)
                finally:
                    if path != "-":
                        os.close(fd)
            except OSError as error:
                raise Failure(f"{name}: {error.strerror or error}") from None

    def _messages(self, fd: int, name: str) -> Iterator[list[bytes]]:
        rest = b""
        while piece := os.read(fd, _PIECE):
            self.read_bytes += len(piece)
            if self._whole or b"\n" not in piece:
                rest += piece
            else:
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                yield from self._checked(lines, name)
            if len(rest) > self._max_size:
                raise self._too_large(name)
        # The last line counts, with or without a line feed at its end.
        yield from self._checked([rest] if rest else [], name)

    def _too_large(self, name: str) -> Failure:
        return Failure(f"{name}: a message of more than {self._max_size:,} bytes (--max-msg-size)")

    def _checked(self, lines: list[bytes], name: str) -> Iterator[list[bytes]]:
        found = [line for line in lines if line]
        self.empty += len(lines) - len(found)
        if found:
            if max(map(len, found)) > self._max_size:
                raise self._too_large(name)
            yield found


class Words:
    """Messages that stand on the command line."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [os.fsencode(word) for word in words]
        self.empty = self._words.count(b"")
        self.read_bytes = 0
        self.total_bytes: int | None = None

    async def runs(self) -> AsyncIterator[list[bytes]]:
        yield [word for word in self._words if word]
