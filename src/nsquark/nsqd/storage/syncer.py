"""fsync, and whatever else waits for the disk, in a thread of its own.

At most one fsync of a topic is under way. The next one covers everything that is written meanwhile.
Publishers that wait for the disk (`--sync-every=1`) get their answers together. An fsync that fails is
repeated until it works, and the data that it was for are written again: `log.syncing`.

Where many topics wait, the thread has several of their fsyncs done at a time: the file system then brings
them to the disk together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark import changes
from nsquark.log import WRITTEN_FILES, LogSync, replace_journal
from nsquark.nsqd.core.answers import Receipt
from nsquark.nsqd.stats.histogram import Histogram

if TYPE_CHECKING:
    from nsquark.nsqd.core.topic import Topic

logger = logging.getLogger(__name__)

# Back to back, the fsyncs of a busy topic would take the disk and a processor for themselves. They get a
# twentieth of the time, as long as the pause stays within --sync-timeout.
REST = 20
LEAST_PAUSE = 0.05
RETRY = 1.0
# Fsyncs that have descriptors of their own, and wait for the thread or have it. Other topics wait without.
AT_ONCE = 16
TOGETHER = 16  # fsyncs of different topics that the thread has done at a time


class Syncer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.times = Histogram()  # of fsync
        self._pool = ThreadPoolExecutor(1, "sync")
        self._helpers: ThreadPoolExecutor | None = None  # of the thread, from when several topics wait
        self._fsyncs: deque[tuple[object, Callable[[], None]]] = deque()  # by topic or folder; for the thread
        self._new_journals: deque[Future[None]] = deque()  # each has a descriptor until it is synced
        self._busy: set[Topic] = set()
        self._again: set[Topic] = set()
        self._waiting: dict[Topic, None] = {}  # busy, and their fsync is not begun; in order
        self._under_way = 0
        self._done: deque[Callable[[], None]] = deque()  # what follows from what the thread has done
        self._closed = False

    def request(self, topic: Topic) -> None:
        """Bring what the topic has written to the disk, soon."""
        if self._closed:  # the topic itself does, with `settle`
            return
        if topic in self._waiting:  # its fsync will cover this, too
            return
        if topic in self._busy:
            self._again.add(topic)
            topic.syncs_soon = topic.sync_every != 1  # where publishers wait, each has to be asked for
            return
        self._busy.add(topic)
        self._waiting[topic] = None
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self._under_way < AT_ONCE and not self._closed:
            topic = next(iter(self._waiting))
            del self._waiting[topic]
            if topic.exiting:
                self._busy.discard(topic)
            else:
                self._begin(topic)

    def _begin(self, topic: Topic) -> None:
        try:
            sync = topic.log.start_sync()
        except OSError as error:
            self._failed(topic, error)
            # Without descriptors they wait until there are some.
            if topic.log.failing or error.errno not in (errno.EMFILE, errno.ENFILE):
                self._settle(topic.take_receipts(), error)
            return
        fds, generation = list[int](), 0
        with contextlib.suppress(OSError):  # the journal's turn comes with the next one
            fds, generation = topic.journal.start_sync()
        receipts = topic.take_receipts()
        begin = self._loop.time()
        self._under_way += 1

        def done(journal_error: OSError | None, ns: int) -> None:
            self._under_way -= 1
            self.times.observe(ns)
            if journal_error is not None:
                topic.journal.not_synced(generation)
                topic.journaling.failed(journal_error)
            error = self._finish(topic, sync)
            self._settle(receipts, error)
            if error is not None:
                self._failed(topic, error)
            elif topic.options.sync_every == 1:  # publishers wait for the disk
                self._rested(topic)
            else:
                pause = max(LEAST_PAUSE, REST * (self._loop.time() - begin))
                self._loop.call_later(min(pause, topic.options.sync_timeout), self._rested, topic)
            self._begin_waiting()

        self._submit_fsync(topic.log.directory, partial(self._run, sync, fds, done))

    def _finish(self, topic: Topic, sync: LogSync) -> OSError | None:
        """Take note of what is on the disk; returns why not everything is that was there at its start."""
        error = topic.log.finish_sync(sync)
        for segment, what in sync.lost:
            logger.error("topic %s: %s", topic.name, what)
            topic.health.broken(what, "segment", str(segment.path))
        if error is None:
            topic.health.works("fsync")
        return error

    def _failed(self, topic: Topic, error: OSError) -> None:
        """Try again a little later, whether anything is published or not. Until then the topic is busy."""
        topic.health.failed_to("be synced", error, "fsync")
        self._busy.add(topic)
        self._again.add(topic)
        self._loop.call_later(RETRY, self._rested, topic)

    @staticmethod
    def _settle(receipts: Sequence[Receipt], error: OSError | None) -> None:
        for receipt in receipts:
            receipt.settle(None if error is None else error.strerror or str(error))

    def _rested(self, topic: Topic) -> None:
        self._busy.discard(topic)
        topic.syncs_soon = False
        if topic in self._again:
            self._again.discard(topic)
            if not topic.exiting:
                self.request(topic)

    def _run(self, sync: LogSync, fds: Sequence[int], done: Callable[[OSError | None, int], None]) -> None:
        begin = time.monotonic_ns()
        sync.run()
        failure = _sync_all(fds)
        self._tell(partial(done, failure, time.monotonic_ns() - begin))

    def _submit_fsync(self, folder: object, work: Callable[[], None]) -> Future[None]:
        """Have the thread do this behind everything asked for before, or beside that of other folders."""
        self._fsyncs.append((folder, work))
        return self._pool.submit(self._run_fsyncs)

    def _run_fsyncs(self) -> None:
        """In the thread: take the first fsyncs that wait, as far as they are of different folders.

        An earlier call may have taken the one for which this call was submitted.
        """
        folders: dict[object, Callable[[], None]] = {}
        while self._fsyncs and len(folders) < TOGETHER and self._fsyncs[0][0] not in folders:
            folder, work = self._fsyncs.popleft()
            folders[folder] = work
        if len(folders) > 1:
            if self._helpers is None:
                self._helpers = ThreadPoolExecutor(TOGETHER, "sync-beside")
            list(self._helpers.map(_call, folders.values()))
        else:
            for work in folders.values():
                work()

    def _tell(self, done: Callable[[], None]) -> None:
        """Have the event loop go on with what the thread has done."""
        self._done.append(done)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no publisher waits any more
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        while self._done:
            self._done.popleft()()

    async def sync_now(self, topic: Topic) -> None:
        """Return when everything the topic has committed is on the disk. Raises OSError.

        It runs beside the fsyncs by `request`, and does not wait for their pauses. Once begun it is finished,
        also if the caller is cancelled: no other fsync has the files that this one has taken.
        """
        sync = topic.log.start_sync()
        told: asyncio.Future[OSError | None] = self._loop.create_future()

        def done() -> None:
            error = self._finish(topic, sync)
            if error is not None:
                if topic not in self._busy:  # else it is tried again anyway
                    self._failed(topic, error)
                self._again.add(topic)
            if not told.done():
                told.set_result(error)

        def work() -> None:
            sync.run()
            self._tell(done)

        self._pool.submit(work)
        if (failure := await told) is not None:
            raise failure

    async def sync_journal(self, topic: Topic) -> None:
        """Return when everything in the topic's journal is on the disk. Raises OSError."""
        topic.journaling.store()
        fds, generation = topic.journal.start_sync()
        failures: list[OSError | None] = []
        # Behind the fsync of a new file, if there is one: what came of that is known when this is done.
        await self.run(lambda: failures.append(_sync_all(fds)))
        if failures[0] is not None:
            topic.journal.not_synced(generation)
            topic.journaling.failed(failures[0])
            raise failures[0]
        if not topic.journal.sound:
            raise OSError(errno.EIO, "the journal could not be synced")

    @property
    def has_room_for_a_journal(self) -> bool:
        """Whether few new journals wait for their fsync."""
        self._forget_synced_journals()
        return len(self._new_journals) < AT_ONCE

    def _forget_synced_journals(self) -> None:
        while self._new_journals and self._new_journals[0].done():
            self._new_journals.popleft()

    def sync_then_delete(
        self, fd: int, path: Path, stale: Sequence[Path], done: Callable[[OSError | None], None]
    ) -> None:
        """fsync and close a new journal; only then delete those it replaces.

        Where very many journals are begun, as at the start, this waits for the first of them.
        """
        self._forget_synced_journals()
        if len(self._new_journals) >= max(AT_ONCE, WRITTEN_FILES.limit // 2):
            self._new_journals.popleft().result()

        def work() -> None:
            failure = None
            try:
                replace_journal(fd, path, stale)
            except OSError as error:
                failure = error
            self._tell(partial(done, failure))

        self._new_journals.append(self._submit_fsync(path.parent, work))

    def delete(self, paths: Sequence[Path]) -> None:
        """Delete files and folders."""

        def work() -> None:
            for path in paths:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
                changes.tell_deleted(path)

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
            with contextlib.suppress(RuntimeError):  # the loop is closed: no publisher waits any more
                self._loop.call_soon_threadsafe(done, failure)

        self._pool.submit(guarded)

    async def run(self, work: Callable[[], None]) -> None:
        """Do something that waits for the disk, behind everything asked for before.

        It is done also if the caller is cancelled: whatever the work has to close is closed.
        """
        await asyncio.shield(self._loop.run_in_executor(self._pool, work))

    def stop(self) -> None:
        """Wait until nothing is under way in the thread; from now on topics sync themselves."""
        self._closed = True
        self._pool.submit(lambda: None).result()
        self._go_on()  # the event loop does not come to it any more

    def close(self) -> None:
        """Wait for everything that was asked for."""
        self._closed = True
        self._pool.shutdown(wait=True)
        if self._helpers is not None:
            self._helpers.shutdown(wait=True)


def _call(work: Callable[[], None]) -> None:
    work()


def _sync_all(fds: Sequence[int]) -> OSError | None:
    """fsync and close all of them; returns what went wrong with one."""
    failure = None
    for fd in fds:
        try:
            os.fdatasync(fd)
        except OSError as error:
            failure = error
        finally:
            os.close(fd)
    return failure
