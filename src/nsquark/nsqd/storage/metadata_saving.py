"""When `nsqd.dat` is written: soon after a change, once for many changes, and again after a failure.

A folder of a deleted topic goes only when a file that does not name the topic is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from nsquark.durable import sync_path
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.stats.health import METADATA, Thing

from . import metadata
from .node import TOPICS, Node, write_atomically
from .syncer import Syncer

logger = logging.getLogger(__name__)

SAVE_AGAIN = 1.0  # seconds after metadata could not be written
# The file of very many topics takes long to lay out, and every topic that comes asks for another one. That
# gets a twentieth of the time, unless a request waits for it.
SAVE_REST = 20


class Saved(Protocol):
    """The broker whose topics are saved."""

    topics: dict[str, Topic]
    node: Node
    syncer: Syncer
    loop: asyncio.AbstractEventLoop
    stopping: bool

    @property
    def problems(self) -> Mapping[Thing, str]: ...
    def healthy(self, what: Thing = ...) -> None: ...
    def unhealthy(self, reason: str, what: Thing = ...) -> None: ...


class MetadataSaving:
    def __init__(self, broker: Saved, path: Path) -> None:
        self.deleted: list[Path] = []  # folders of topics, to be removed once the metadata is saved
        self._broker = broker
        self._path = path
        self._change = self._saved = 0  # which change of the metadata has been made, and is on disk
        self._saving: asyncio.Task[OSError | None] | None = None
        self._rests = False  # changes are made, and the next save waits for its time

    @property
    def idle(self) -> bool:
        """Whether nothing is written now."""
        return self._saving is None

    def write(self) -> None:
        """Write the file now. For the start and the end of the process. Raises OSError."""
        write_atomically(self._path / metadata.FILE_NAME, metadata.pack(self._broker.topics.values()))

    def changed(self) -> None:
        """Have the file written soon."""
        if self._broker.stopping:
            return
        self._change += 1
        if self._saving is None and not self._rests:
            self._begin()

    async def save(self) -> None:
        """Return when everything up to now is in the file and on disk. Raises OSError."""
        self._change += 1
        wanted = self._change
        while self._saved < wanted:
            saving = self._saving or self._begin()
            error = await asyncio.shield(saving)
            if error is not None and self._saved < wanted:
                raise error

    async def finish(self) -> None:
        """Return when nothing is written any more. The broker is stopping, so nothing new begins."""
        if self._saving is not None:
            await asyncio.wait([self._saving])

    def _begin(self) -> asyncio.Task[OSError | None]:
        self._saving = self._broker.loop.create_task(self._save())
        return self._saving

    async def _save(self) -> OSError | None:
        """Save the changes up to now; returns what came between. What is not saved is saved later."""
        broker = self._broker
        begin = time.monotonic()
        change = self._change
        deleted, self.deleted = self.deleted, []
        try:
            data = metadata.pack(broker.topics.values())
            rest = SAVE_REST * (time.monotonic() - begin)

            def write() -> None:
                if deleted:
                    broker.node.save()
                    sync_path(self._path / TOPICS)
                write_atomically(self._path / metadata.FILE_NAME, data)

            await broker.syncer.run(write)
        except OSError as error:
            if broker.problems.get(METADATA) != str(error):
                logger.error("failed to persist metadata - %s", error)
            broker.unhealthy(str(error), METADATA)
            self.deleted = deleted + self.deleted
            if not broker.stopping:
                broker.loop.call_later(SAVE_AGAIN, self._save_again)
            return error
        finally:
            self._saving = None
        broker.healthy(METADATA)
        broker.syncer.delete(deleted)
        self._saved = change
        if self._saved < self._change and not broker.stopping:
            self._rests = True
            broker.loop.call_later(rest, self._save_again)
        return None

    def _save_again(self) -> None:
        self._rests = False
        if self._saving is None and self._saved < self._change and not self._broker.stopping:
            self._begin()
