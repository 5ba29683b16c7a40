"""Brings closed segments to the archive, and has the log know of each.

A segment that was rolled, that the disk holds and that every member of a replica group has is copied by a
thread. When the archive has given the same bytes back, a record is written beside the segment
(`nsquark.log.archived`), and only after the disk holds the record may the segment be deleted. A crash in
between has the segment copied again: its object has the same name, which tells its content.

What the archive keeps no longer is deleted in between (`deletions`). A primary alone does all this: a copy of
a node has no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nsquark import changes
from nsquark.durable import sync_path
from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.kernel.pure import HEADER
from nsquark.log import Archived, Segment, archived_name, few_marks, pack_archived
from nsquark.log.archived import TEMPORARY
from nsquark.log.file_names import with_term
from nsquark.names import to_file_name
from nsquark.nsqd.storage.daemon_threads import DaemonThreads

from .deletions import Deletions
from .fetched_segments import FetchedSegments
from .object_store import ObjectStore, read_pieces

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.topic import Topic

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
INTERVAL = 1.0  # seconds from one look at all topics to the next
FIRST_RETRY, LAST_RETRY = 1.0, 60.0  # seconds after a failure; they double with each
MOST_FAILURES = 3  # topics
STEP = 100  # topics that are looked at before others have their turn


class Archive:
    def __init__(self, broker: Broker, path: Path) -> None:
        """Raises ValueError and OSError."""
        self.store = ObjectStore(broker.options.archive_url)
        self.fetched = FetchedSegments(path, broker.options.archive_fetched_bytes, self.store.get)
        self.uploaded = 0  # segments, since the start
        self.uploaded_bytes = 0
        self.failure = ""  # why the last attempt failed, until one succeeds
        self.busy_since = 0.0  # monotonic; 0 while nothing is under way
        self.deletions = Deletions(broker, self.store, self.fetched, self._in_thread)
        self._broker = broker
        self._failing: set[str] = set()  # topics whose segments could not be copied the last time
        self._threads = DaemonThreads(1, "archive")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Begin nothing more. A copy that is under way comes to nothing: it has no record."""
        if self._task is not None:
            self._task.cancel()
        self._threads.shutdown(wait=False)

    async def _run(self) -> None:
        retry = FIRST_RETRY
        while True:
            try:
                again = await self._look()
            except Exception as error:  # whatever it is, the next time may be better
                self._failed(error)
                await asyncio.sleep(retry)
                retry = min(2 * retry, LAST_RETRY)
            else:
                retry = FIRST_RETRY
                if self.failure:
                    logger.info("ARCHIVE: works again")
                    self.failure = ""
                if not again:
                    await asyncio.sleep(INTERVAL)

    async def _look(self) -> bool:
        """Archive a segment of each topic, and delete what has expired; returns whether there was any.

        Raises what went wrong, once the other topics had their turn: those that failed come last the next
        time. After `MOST_FAILURES` the archive is taken for away.
        """
        found, failures = False, dict[str, Exception]()
        self.deletions.begin(self._broker.topics, MOST_FAILURES)
        topics = sorted(self._broker.topics.values(), key=lambda topic: topic.name in self._failing)
        for number, topic in enumerate(topics):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            if len(failures) == MOST_FAILURES:
                break
            if topic.exiting or topic.log.files is None:
                continue
            try:
                found |= await self.deletions.delete(topic, topic.log.files.expired)
                segment = topic.log.files.next_to_archive(topic.synced)
                if segment is not None and not topic.exiting:
                    found |= await self._archive(topic, segment)
            except LogDamaged as error:
                topic.health.leave_out(error)
                found = True
            except (OSError, LogCorrupt) as error:
                if not topic.exiting:  # else its folder is gone, and nothing is wrong with the archive
                    failures[topic.name] = error
        self._failing = set(failures)
        if failures:
            raise next(iter(failures.values()))
        return found

    async def _archive(self, topic: Topic, segment: Segment) -> bool:
        """Copy a segment and write the record; False if that came to nothing because the topic is gone.

        Raises ArchiveAway, LogDamaged and OSError.
        """
        folder, epoch = topic.log.directory, topic.epoch
        assert folder is not None
        prefix = f"{self._broker.node.uuid}/{to_file_name(topic.name)}/{epoch:016x}"
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        archived = await self._in_thread(partial(copy_segment, self.store, segment, fd, prefix))
        return await self._record(topic, segment, folder, archived)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Have the archive's one thread do this."""
        self.busy_since = time.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.busy_since = 0.0

    async def _record(self, topic: Topic, segment: Segment, folder: Path, archived: Archived) -> bool:
        """Have the disk, and then the log, know that a segment is archived. Raises OSError."""
        path = folder / archived_name(segment.base, segment.term)
        temporary = folder / f"{segment.base:020d}.{os.urandom(4).hex()}{TEMPORARY}"
        data = pack_archived(archived)
        try:
            await self._broker.syncer.run(partial(_write, temporary, data))
            # On the loop, where topics are deleted: another topic may have this folder's name by now.
            if not self._is_there(topic, segment, archived):
                return False
            os.replace(temporary, path)
            changes.tell_put(path, data)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        await self._broker.syncer.run(partial(sync_path, folder))
        if not self._is_there(topic, segment, archived):
            return False
        segment.archived = archived
        self.uploaded += 1
        self.uploaded_bytes += archived.size
        logger.debug("ARCHIVE: topic %s: %s is in the archive as %s", topic.name, archived.file, archived.key)
        return True

    @staticmethod
    def _is_there(topic: Topic, segment: Segment, archived: Archived) -> bool:
        """Whether the segment still is what was copied."""
        size = segment.size - segment.start
        return not topic.exiting and segment in topic.log.segments and size == archived.size

    @property
    def busy_seconds(self) -> float:
        """For how long the segment that is being copied has been; 0 if there is none."""
        return round(time.monotonic() - self.busy_since, 3) if self.busy_since else 0.0

    def describe(self) -> dict[str, object]:
        """For /stats."""
        return {
            "url": self.store.url,
            "failure": self.failure or self.deletions.failure,
            "uploaded": self.uploaded,
            "uploaded_bytes": self.uploaded_bytes,
            "deleted": self.deletions.deleted,
            "deleted_bytes": self.deletions.deleted_bytes,
            "busy_seconds": self.busy_seconds,
            "fetched_bytes": self.fetched.size,
        }

    def _failed(self, error: BaseException) -> None:
        if str(error) != self.failure:
            logger.warning("ARCHIVE: %s; tried again and again, and nothing is deleted meanwhile", error)
        self.failure = str(error) or repr(error)


def copy_segment(store: ObjectStore, segment: Segment, fd: int, prefix: str) -> Archived:
    """In the thread: copy a segment, of which `fd` is a descriptor; closes that.

    Every batch is checked, also one that was checked before. Raises ArchiveAway, LogDamaged and OSError.
    """
    try:
        found = segment.examine(fd)
        if found.damages or found.whole < segment.size or found.end < segment.end:
            segment.verify(fd)  # keeps the damage aside, and raises LogDamaged
            raise OSError(f"{segment.path} does not read the same twice")
        (_, _, _, _, _, _, time_, _) = HEADER.unpack(os.pread(fd, HEADER.size, segment.start))
        crc = 0
        for piece in read_pieces(fd, segment.start, segment.size):
            crc = zlib.crc32(piece, crc)
        name = with_term(f"{segment.base:020d}-{segment.end:020d}-{crc:08x}", segment.term)
        archived = Archived(
            f"{prefix}/{name}.log",
            segment.path.name,
            segment.base,
            segment.end,
            segment.start,
            segment.size,
            crc,
            time_,
            segment.modified,
            few_marks(found.pieces[0].marks),
        )
        store.put(archived.key, fd, archived.start, archived.stop, crc)
        return archived
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
