"""Brings closed segments to the archive, has the log know of each, and deletes what is kept no longer.

A segment that was rolled, that the disk holds and that every member of a replica group has is copied by a
thread. When the archive has given the same bytes back, a record is written beside the segment
(`nsquark.log.archived`), and only after the disk holds the record may the segment be deleted. A crash in
between has the segment copied again: its object has the same name, which tells its content.

What the archive keeps no longer goes in three steps. The log renames the record, so that the segment is no
part of it any more (`LogFiles.expire`). When the disk, and every member of a replica group that could lead,
has the new name, the object is deleted, and then the record. A crash in between has the object deleted again.

A primary alone does this: a copy of a node has no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark import changes
from nsquark.durable import sync_path
from nsquark.errors import ArchiveAway, LogCorrupt, LogDamaged
from nsquark.kernel.pure import HEADER
from nsquark.log import Archived, Expired, Segment, archived_name, few_marks, pack_archived
from nsquark.log.archived import TEMPORARY
from nsquark.log.file_names import with_term
from nsquark.names import to_file_name
from nsquark.nsqd.storage.daemon_threads import DaemonThreads

from .fetched_segments import FetchedSegments
from .object_store import ObjectStore, read_pieces

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.topic import Topic

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds from one look at all topics to the next
FIRST_RETRY, LAST_RETRY = 1.0, 60.0  # seconds after a failure; they double with each
MOST_FAILURES = 3  # topics
STEP = 100  # topics that are looked at before others have their turn
MOST_DELETED = 100  # objects of a topic, before others have their turn


class Archive:
    def __init__(self, broker: Broker, path: Path) -> None:
        """Raises ValueError and OSError."""
        self.store = ObjectStore(broker.options.archive_url)
        self.fetched = FetchedSegments(path, broker.options.archive_fetched_bytes, self.store.get)
        self.uploaded = 0  # segments, since the start
        self.uploaded_bytes = 0
        self.deleted = 0  # segments, since the start
        self.deleted_bytes = 0
        self.failure = ""  # why the last attempt failed, until one succeeds
        self.busy_since = 0.0  # monotonic; 0 while nothing is under way
        self._broker = broker
        self._not_deleted = ""  # why an object is still there
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
        topics = sorted(self._broker.topics.values(), key=lambda topic: topic.name in self._failing)
        for number, topic in enumerate(topics):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            if len(failures) == MOST_FAILURES:
                break
            if topic.exiting or topic.log.files is None:
                continue
            try:
                found |= await self._delete_expired(topic, topic.log.files.expired)
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
        self.busy_since = time.monotonic()
        try:
            copying = partial(copy_segment, self.store, segment, fd, prefix)
            archived = await asyncio.get_running_loop().run_in_executor(self._threads, copying)
        finally:
            self.busy_since = 0.0
        return await self._record(topic, segment, folder, archived)

    async def _delete_expired(self, topic: Topic, expired: list[Expired]) -> bool:
        """Delete objects that no log has any more; whether there was any. Raises ArchiveAway and OSError."""
        unasked = [each for each in expired if each.confirmed is None]
        if unasked:
            assert topic.log.directory is not None
            for each in unasked:
                each.confirmed = False
            try:
                await self._broker.syncer.run(partial(sync_path, topic.log.directory))
            except OSError:
                for each in unasked:
                    each.confirmed = None
                raise
            if topic.gate is None:
                _confirm(unasked)
            else:
                topic.gate.then(partial(_confirm, unasked))
        ready = [each for each in expired if each.confirmed][:MOST_DELETED]
        if not ready:
            return False
        self.busy_since = time.monotonic()
        try:
            deleting = partial(self._delete_objects, ready)
            done = await asyncio.get_running_loop().run_in_executor(self._threads, deleting)
        finally:
            self.busy_since = 0.0
        for each in done:
            expired.remove(each)
            if not topic.exiting:  # else its folder may be another topic's
                each.path.unlink(missing_ok=True)
                changes.tell_deleted(each.path)
            self.deleted += 1
            self.deleted_bytes += each.archived.size
        if len(done) < len(ready):
            raise ArchiveAway(f"{ready[len(done)].archived.key} cannot be deleted: {self._not_deleted}")
        logger.debug("ARCHIVE: topic %s: %d objects are deleted", topic.name, len(done))
        return True

    def _delete_objects(self, ready: list[Expired]) -> list[Expired]:
        """In the thread: delete objects one by one; returns those before the first that cannot be deleted."""
        for number, each in enumerate(ready):
            self.fetched.forget(each.archived)
            try:
                self.store.delete(each.archived.key)
            except ArchiveAway as error:
                self._not_deleted = str(error)
                return ready[:number]
        return ready

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
            "failure": self.failure,
            "uploaded": self.uploaded,
            "uploaded_bytes": self.uploaded_bytes,
            "deleted": self.deleted,
            "deleted_bytes": self.deleted_bytes,
            "busy_seconds": self.busy_seconds,
            "fetched_bytes": self.fetched.size,
        }

    def _failed(self, error: BaseException) -> None:
        if str(error) != self.failure:
            logger.warning("ARCHIVE: %s; tried again and again, and nothing is deleted meanwhile", error)
        self.failure = str(error) or repr(error)


def _confirm(expired: list[Expired]) -> None:
    """The records that say so stay after any crash of any member: these objects may be deleted."""
    for each in expired:
        each.confirmed = True


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
