"""Deletes in the archive what it keeps no longer.

That goes in three steps. The log renames the record, so that the segment is no part of it any more
(`LogFiles.expire`). When the disk, and every member of a replica group that could lead, has the new name, the
object is deleted, and then the record. A crash in between has the object deleted again.

An object may stay for long, such as where nsqd may write to a bucket and not delete from it. So a topic whose
objects cannot be deleted is tried again after times of its own, and its segments are archived meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from nsquark import changes
from nsquark.durable import sync_path
from nsquark.errors import ArchiveAway
from nsquark.log import Expired

from .fetched_segments import FetchedSegments
from .object_store import ObjectStore

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.topic import Topic

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
MOST_DELETED = 100  # objects of a topic, before others have their turn
FIRST_RETRY, LAST_RETRY = 1.0, 60.0  # seconds after a failure; they double with each


class InThread(Protocol):
    def __call__(self, work: Callable[[], _T]) -> Awaitable[_T]: ...


class Failure(NamedTuple):
    """The objects of a topic could not be deleted."""

    reason: str
    until: float  # monotonic: before that it is not tried again
    retry: float


class Deletions:
    def __init__(
        self, broker: Broker, store: ObjectStore, fetched: FetchedSegments, in_thread: InThread
    ) -> None:
        self.deleted = 0  # segments, since the start
        self.deleted_bytes = 0
        self._broker = broker
        self._store = store
        self._fetched = fetched
        self._in_thread = in_thread
        self._may_fail = 0  # topics, before the archive is taken for away: then nothing more is tried
        self._not_deleted = ""  # why an object is still there
        self._failures: dict[str, Failure] = {}  # by topic

    @property
    def failure(self) -> str:
        """Why objects cannot be deleted; empty if all can be."""
        return next((each.reason for each in self._failures.values()), "")

    def begin(self, topics: Container[str], may_fail: int) -> None:
        """A look at these topics begins. After so many failures in it, nothing more is tried."""
        self._may_fail = may_fail
        for name in [each for each in self._failures if each not in topics]:
            del self._failures[name]

    async def delete(self, topic: Topic, expired: list[Expired]) -> bool:
        """Delete objects that no log has any more, if it is time for that; whether there was any."""
        failed = self._failures.get(topic.name)
        if not expired:
            if failed is not None:  # the topic is another one
                del self._failures[topic.name]
            return False
        if self._may_fail <= 0 or (failed is not None and time.monotonic() < failed.until):
            return False
        try:
            done = await self._delete(topic, expired)
        except OSError as error:
            if not topic.exiting:  # else its folder is gone, and nothing is wrong with the archive
                self._has_failed(topic.name, error, failed)
            return False
        if failed is not None and done:
            logger.info("ARCHIVE: objects of topic %s are deleted again", topic.name)
            del self._failures[topic.name]
        return done

    def _has_failed(self, name: str, error: OSError, before: Failure | None) -> None:
        self._may_fail -= 1
        retry = FIRST_RETRY if before is None else min(2 * before.retry, LAST_RETRY)
        self._failures[name] = Failure(str(error), time.monotonic() + retry, retry)
        if before is None:
            logger.warning("ARCHIVE: topic %s: %s; tried again and again", name, error)

    async def _delete(self, topic: Topic, expired: list[Expired]) -> bool:
        """Raises ArchiveAway and OSError."""
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
        done = await self._in_thread(partial(self._delete_objects, ready))
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
            self._fetched.forget(each.archived)
            try:
                self._store.delete(each.archived.key)
            except ArchiveAway as error:
                self._not_deleted = str(error)
                return ready[:number]
        return ready


def _confirm(expired: list[Expired]) -> None:
    """The records that say so stay after any crash of any member: these objects may be deleted."""
    for each in expired:
        each.confirmed = True
