"""fsync, and whatever else waits for the disk, in a thread of its own.

At most one fsync of a topic is under way; what comes meanwhile is covered by the next. Those who wait for
the disk (`--sync-every=1`) get their answers together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from .histogram import Histogram

if TYPE_CHECKING:
    from .topic import Topic

logger = logging.getLogger(__name__)

# Back to back, the fsyncs of a busy topic would take the disk and a processor for themselves. They get a
# twentieth of the time, as long as the pause stays within --sync-timeout.
REST = 20
LEAST_PAUSE = 0.05
RETRY = 1.0


class Syncer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.times = Histogram()  # of fsync
        self._pool = ThreadPoolExecutor(1, "sync")
        self._busy: set[Topic] = set()
        self._again: set[Topic] = set()
        self._closed = False

    def request(self, topic: Topic) -> None:
        """Bring what the topic has written to the disk, soon."""
        if topic in self._busy:
            self._again.add(topic)
            topic.syncs_soon = topic.sync_every != 1  # where publishers wait, each has to be asked for
            return
        self._busy.add(topic)
        try:
            fds, messages = topic.log.start_sync()
        except OSError as error:  # out of descriptors: later, then
            logger.error("topic %s: no fsync: %s", topic.name, error)
            topic.broken(str(error), "fsync")
            self._again.add(topic)
            self._loop.call_later(RETRY, self._rested, topic)
            return
        with contextlib.suppress(OSError):  # the journal's turn comes with the next one
            fds += topic.journal.start_sync()
        receipts, topic.unsynced_receipts = topic.unsynced_receipts, []

        begin = self._loop.time()

        def done(error: OSError | None, ns: int) -> None:
            topic.log.synced(messages)
            self.times.observe(ns)
            if error is None:
                topic.works("fsync")
            else:
                logger.error("topic %s: fsync failed: %s", topic.name, error)
                topic.broken(str(error), "fsync")
            for receipt in receipts:
                receipt.settle(None if error is None else error.strerror or str(error))
            if topic.options.sync_every == 1:  # publishers wait for the disk
                self._rested(topic)
            else:
                pause = max(LEAST_PAUSE, REST * (self._loop.time() - begin))
                self._loop.call_later(min(pause, topic.options.sync_timeout), self._rested, topic)

        self._pool.submit(self._run, fds, done)

    def _rested(self, topic: Topic) -> None:
        self._busy.discard(topic)
        topic.syncs_soon = False
        if topic in self._again:
            self._again.discard(topic)
            if not topic.exiting and not self._closed:
                self.request(topic)

    def _run(self, fds: Sequence[int], done: Callable[[OSError | None, int], None]) -> None:
        failure = None
        begin = time.monotonic_ns()
        for fd in fds:
            try:
                os.fdatasync(fd)
            except OSError as error:
                failure = error
            finally:
                os.close(fd)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(done, failure, time.monotonic_ns() - begin)

    async def sync_now(self, topic: Topic) -> None:
        """Return when everything the topic has committed is on the disk. Raises OSError.

        Beside the fsyncs by `request`, whose pauses are no concern of who waits here.
        """
        fds, _ = topic.log.start_sync()

        def work() -> None:
            failure = None
            for fd in fds:
                try:
                    os.fdatasync(fd)
                except OSError as error:
                    failure = error
                finally:
                    os.close(fd)
            if failure is not None:
                raise failure

        await self.run(work)

    def sync_then_delete(self, fd: int, stale: Sequence[Path]) -> None:
        """fsync and close a new file; only then delete those it replaces."""

        def work() -> None:
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            for path in stale:
                path.unlink(missing_ok=True)

        self._submit(work)

    def delete(self, paths: Sequence[Path]) -> None:
        """Delete files and folders."""

        def work() -> None:
            for path in paths:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

        self._submit(work)

    def _submit(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except OSError as error:
                logger.error("the disk refused: %s", error)

        self._pool.submit(guarded)

    def run_then(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Do something that waits for the disk; then call `done` on the loop, with what went wrong."""

        def guarded() -> None:
            failure = None
            try:
                work()
            except OSError as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(done, failure)

        self._pool.submit(guarded)

    async def run(self, work: Callable[[], None]) -> None:
        """Do something that waits for the disk, behind everything asked for before."""
        await self._loop.run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for everything that was asked for."""
        self._closed = True
        self._pool.shutdown(wait=True)
