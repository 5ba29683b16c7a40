"""Reading that may wait for the disk, in threads of its own.

They are not the thread of `syncer`, so that reading old messages does not hold up an fsync. Each piece of
work holds descriptors of its own: the event loop may close and delete files meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nsquark.errors import LogDamaged
from nsquark.log import Segment

THREADS = 4
_T = TypeVar("_T")


class DiskReads:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, "read")
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
            future = self._loop.run_in_executor(self._pool, segment.verify)
            future.add_done_callback(lambda future: self._indexed(segment, future))

    def _indexed(self, segment: Segment, future: asyncio.Future[None]) -> None:
        error = OSError("cancelled") if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, (OSError, LogDamaged)):
            error = OSError(repr(error))
        for then in self._indexing.pop(segment).values():
            then(error)

    def close(self) -> None:
        """Wait for what is under way, and for nothing else."""
        self._pool.shutdown(wait=True, cancel_futures=True)
