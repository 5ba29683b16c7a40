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
from nsquark.errors import LogDamaged
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
MOST_FAILURES = 3  # topics, in one look
STEP = 100  # topics that are looked at before others have their turn


class _Failing:
    """A topic whose segment could not be copied the last time: it is left alone for a while."""

    __slots__ = ("reason", "retry", "until")

    def __init__(self) -> None:
        self.reason = ""
        self.retry = FIRST_RETRY
        self.until = 0.0  # monotonic

    def again(self, reason: str) -> None:
        self.reason = reason
        self.until = time.monotonic() + self.retry
        self.retry = min(2 * self.retry, LAST_RETRY)


class Archive:
    def __init__(self, broker: Broker, path: Path) -> None:
        """Raises ValueError and OSError."""
        self.store = ObjectStore(broker.options.archive_url)
        self.fetched = FetchedSegments(path, broker.options.archive_fetched_bytes, self.store.get)
        self.uploaded = 0  # segments, since the start
        self.uploaded_bytes = 0
        self.busy_since = 0.0  # monotonic; 0 while nothing is under way
        self.deletions = Deletions(broker, self.store, self.fetched, self._in_thread)
        self._broker = broker
        self._begun = False  # the archive has something of this node
        self._failing: dict[str, _Failing] = {}  # by topic
        self._threads = DaemonThreads(1, "archive")
        self._task: asyncio.Task[None] | None = None

    @property
    def failure(self) -> str:
        """Why a segment could not be copied, until it can be."""
        return next((each.reason for each in self._failing.values()), "")

    def start(self) -> None:
        self._begun = any(map(_is_in_archive, self._broker.topics.values()))
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Begin nothing more. A copy that is under way comes to nothing: it has no record."""
        if self._task is not None:
            self._task.cancel()
        self._threads.shutdown(wait=False)

    async def _run(self) -> None:
        away = FIRST_RETRY
        while True:
            done, failed = await self._look()
            if failed and not done:  # likely by no fault of a topic
                await asyncio.sleep(away)
                away = min(2 * away, LAST_RETRY)
                continue
            away = FIRST_RETRY
            if not done:
                await asyncio.sleep(INTERVAL)

    async def _look(self) -> tuple[bool, bool]:
        """Archive a segment of each topic, and delete what has expired: whether any was done, or failed.

        A topic that fails holds up no other: it comes last the next time, and is left alone for longer and
        longer. After `MOST_FAILURES` the archive is taken for away.
        """
        self.deletions.begin(self._broker.topics, MOST_FAILURES)
        done, failures = False, 0
        for number, topic in enumerate(self._in_turn()):
            if number % STEP == STEP - 1:
                await asyncio.sleep(0)
            if failures == MOST_FAILURES:
                break
            if topic.exiting or topic.log.files is None:
                continue
            try:
                done |= await self.deletions.delete(topic, topic.log.files.expired)
                done |= await self._archive_next(topic)
            except LogDamaged as error:
                topic.health.leave_out(error)
                done = True
            except Exception as error:  # whatever it is, the next time may be better
                if not topic.exiting:  # else its folder is gone, and nothing is wrong with the archive
                    failures += 1
                    self._failed(topic.name, error)
        return done, bool(failures)

    def _in_turn(self) -> list[Topic]:
        """All topics, the failing ones last."""
        topics = self._broker.topics
        for name in [each for each in self._failing if each not in topics]:
            del self._failing[name]
        if not self._failing:
            return list(topics.values())
        return sorted(topics.values(), key=lambda topic: topic.name in self._failing)

    async def _archive_next(self, topic: Topic) -> bool:
        """Archive the next segment of a topic, if there is one and it is time for that; whether it was."""
        failing = self._failing.get(topic.name)
        if topic.exiting or topic.log.files is None:
            return False
        if failing is not None and time.monotonic() < failing.until:
            return False
        segment = topic.log.files.next_to_archive(topic.synced)
        done = segment is not None and await self._archive(topic, segment)
        if self._failing.pop(topic.name, None) is not None and not self._failing:
            logger.info("ARCHIVE: works again")
        return done

    async def _archive(self, topic: Topic, segment: Segment) -> bool:
        """Copy a segment and write the record; False if that came to nothing because the topic is gone.

        Raises ArchiveAway, LogDamaged and OSError.
        """
        folder, epoch = topic.log.directory, topic.epoch
        assert folder is not None
        prefix = f"{self._broker.node.uuid}/{to_file_name(topic.name)}/{epoch:016x}"
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        archived = await self._in_thread(
            partial(copy_segment, self.store, segment, fd, prefix, not self._begun)
        )
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
        self._begun = True
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

    def _failed(self, name: str, error: Exception) -> None:
        reason = str(error) or repr(error)
        if all(each.reason != reason for each in self._failing.values()):
            logger.warning("ARCHIVE: %s; tried again and again, and nothing is deleted meanwhile", reason)
        self._failing.setdefault(name, _Failing()).again(reason)


def _is_in_archive(topic: Topic) -> bool:
    """Whether the archive has something of this topic."""
    files = topic.log.files
    if files is None:
        return False
    return bool(files.archived or files.expired) or any(each.archived for each in files.segments)


def copy_segment(store: ObjectStore, segment: Segment, fd: int, prefix: str, first: bool = True) -> Archived:
    """In the thread: copy a segment, of which `fd` is a descriptor; closes that.

    `first` says that the archive has nothing of this node yet. Every batch is checked, also one that was
    checked before. Raises ArchiveAway, LogDamaged and OSError.
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
        store.put(archived.key, fd, archived.start, archived.stop, crc, first)
        return archived
    finally:
        os.close(fd)


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
