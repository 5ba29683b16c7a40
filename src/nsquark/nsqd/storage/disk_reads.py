"""Reading that may wait for the disk, in threads of its own.

They are not the thread of `syncer`, so that reading old messages does not hold up an fsync. Each piece of
work holds descriptors of its own: the event loop may close and delete files meanwhile.

What must come from the archive has threads of its own. An archive may take for ever, so nothing waits for
them: neither the threads that read files, nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from nsquark.errors import ArchiveAway, ConnectionLost, LogDamaged
from nsquark.log import Segment

from .daemon_threads import DaemonThreads

THREADS = 4
FETCHING_THREADS = 4
FETCH_TIMEOUT = 8.0  # seconds that a request waits for a segment from the archive; the fetch goes on
MOST_WAITING = 256  # requests that wait at a time
_T = TypeVar("_T")
Wait = Callable[[float, "asyncio.Future[Any]"], Awaitable[bool]]


class DiskReads:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "read")
        self._fetching = DaemonThreads(FETCHING_THREADS, "fetch")
        self._waiting = 0
        self._indexing: dict[Segment, dict[object, Callable[[Exception | None], None]]] = {}

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do the work in a thread, and return its result.

        A caller that is cancelled meanwhile goes on when the thread is done. It may close then what the work
        has used.
        """
        future = self._loop.run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def index(self, segment: Segment, who: object, then: Callable[[Exception | None], None]) -> None:
        """Have a segment look into its file, once for all callers that ask for it, and call each `then` once.

        `then` gets None, or an OSError or LogDamaged.
        """
        begun = segment in self._indexing
        self._indexing.setdefault(segment, {})[who] = then
        if not begun:
            if segment.store is None:
                future = self._loop.run_in_executor(self._pool, _verify_here, segment)
            else:
                future = self._loop.run_in_executor(self._fetching, self._fetch, segment)
            future.add_done_callback(lambda future: self._indexed(segment, future))

    async def fetch(self, segment: Segment, wait: Wait | None = None) -> None:
        """Return when a segment can be read.

        `wait` waits for a future, at most so many seconds, and says whether the client has gone meanwhile.
        Raises ArchiveAway, LogDamaged or OSError, among them ConnectionLost.
        """
        if self._waiting >= MOST_WAITING:
            raise ArchiveAway("too many requests wait for the archive")
        indexed: asyncio.Future[Exception | None] = self._loop.create_future()

        def then(error: Exception | None) -> None:
            if not indexed.done():
                indexed.set_result(error)

        self._waiting += 1
        try:
            self.index(segment, indexed, then)
            if await (wait or _wait)(FETCH_TIMEOUT, indexed):
                raise ConnectionLost("the client has gone")
        finally:
            self._waiting -= 1
            self._indexing.get(segment, {}).pop(indexed, None)  # the fetch may go on for ever
        if not indexed.done() or indexed.cancelled():
            raise ArchiveAway(f"nothing has come for {FETCH_TIMEOUT:g} s")
        error = indexed.result()
        if error is not None:
            raise error

    def _fetch(self, segment: Segment) -> None:
        """In a thread: have a segment here, unless all have gone that had asked for it."""
        if self._indexing.get(segment):
            segment.verify()

    def _indexed(self, segment: Segment, future: asyncio.Future[None]) -> None:
        error = OSError("cancelled") if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, (OSError, LogDamaged)):
            error = OSError(repr(error))
        for then in self._indexing.pop(segment).values():
            then(error)

    def close(self) -> None:
        """Wait for what is under way on the disk, and for nothing else."""
        self._fetching.shutdown(wait=False)
        self._pool.shutdown(wait=True, cancel_futures=True)


async def _wait(seconds: float, news: asyncio.Future[Any]) -> bool:
    """Wait for `news` where there is no client that could go."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(news, seconds)
    return False


def _verify_here(segment: Segment) -> None:
    """Look into a file, unless only the archive has it by now: then the next read has it fetched."""
    if segment.store is None:
        segment.verify()
