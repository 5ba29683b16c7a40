"""The import of a data directory of Go's nsqd, from its first look to its last clean-up.

    building    every topic with unread messages is built in nsquark.import/topics, and brought to the disk.
                Nothing of Go's nsqd is touched: until here, Go's nsqd can be started again as it was.
    complete    one rename of state.json. From here on the messages are nsquark's.
    installing  the topics are moved to their place, the files of Go's nsqd are deleted, then nsquark.import.

A crash between any two system calls leaves a directory with which the next start goes on (`progress`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from pathlib import Path

from nsquark.diskqueue import Unreadable
from nsquark.durable import sync_path
from nsquark.errors import UnknownVersion
from nsquark.log import Damage, Limits, keep
from nsquark.log.damage import tidy
from nsquark.names import to_file_name
from nsquark.nsqd.storage import metadata, node
from nsquark.nsqd.storage.inspection import DELETED, DataRefused, check_node_version
from nsquark.nsqd.storage.node import Node, write_atomically

from . import progress
from .plan import ImportPlan, TopicPlan, make_plan, mark_of
from .progress import Checkpoint, Imported, ImportState
from .topic_import import TopicImport

logger = logging.getLogger(__name__)

TELL_EVERY = 5.0  # seconds
_GROWTH = 1.15  # a message of the log has a few bytes more than in a queue: this is enough for tiny ones


class Takeover:
    """Takes over one data directory. Its caller holds the lock of the directory."""

    def __init__(self, data_path: Path, node_id: int, max_bytes_per_file: int, max_msg_size: int) -> None:
        self._path = data_path
        self._node_id = node_id
        self._limits = Limits(max_bytes_per_file, 1)
        self._max_msg_size = max_msg_size
        self._stop = threading.Event()
        self._told_at = 0.0

    def stop(self) -> None:
        """Have `run` come to an end soon. May be called from any thread."""
        self._stop.set()

    def run(self) -> bool:
        """Import what there is, or go on with an import that was interrupted. May run in any thread.

        Returns whether it is complete; it is not after `stop`. Raises DataRefused and BadMetadata: nothing of
        Go's nsqd was changed then, unless the import was complete.
        """
        try:
            return self._run()
        except UnknownVersion as error:
            raise DataRefused(str(error)) from None
        except OSError as error:
            what = f"{error.filename}: " if error.filename else ""
            text = f"messages of Go's nsqd cannot be imported: {what}{error.strerror or error}"
            raise DataRefused(text) from None

    def _run(self) -> bool:
        state = progress.load(self._path)
        if state is None or not state.complete:
            plan = make_plan(self._path, self._node_id)
            if plan.empty:
                progress.remove(self._path)
                return True
            check_node_version(self._path)
            state = self._begin(plan, state)
            if not self._build(plan, state):
                logger.info("IMPORT: interrupted; the next start goes on with it")
                return False
            state.complete, state.checkpoint = True, None
            progress.save(self._path, state)
        self._install(state)
        return True

    # ---- building

    def _begin(self, plan: ImportPlan, state: ImportState | None) -> ImportState:
        _tell_plan(plan)
        if state is not None and state.fits(plan):
            logger.info("IMPORT: going on with an import that was interrupted")
        else:
            if state is not None:
                logger.warning("IMPORT: files have changed since it was interrupted: it begins anew")
            progress.remove(self._path)
            self._check_room(plan)
            state = progress.begin(self._path, plan)
        return state

    def _check_room(self, plan: ImportPlan) -> None:
        """Refuse to begin what the disk has no room for: Go's files stay until all is imported."""
        stat = os.statvfs(self._path)
        free = stat.f_bavail * stat.f_frsize
        needed = int(plan.unread_bytes() * _GROWTH)
        if needed > free:
            room = f"that needs about {needed} bytes, and {free} are free"
            raise OSError(errno.ENOSPC, f"{room}; Go's files stay until all is imported")

    def _build(self, plan: ImportPlan, state: ImportState) -> bool:
        """Build what is not built yet; returns False if it was stopped."""
        tidy(self._path, os.listdir(self._path))
        this = Node(self._path, self._node_id)
        done = {each.topic for each in state.done}
        for topic in plan.topics:
            if topic.name in done:
                continue
            checkpoint = state.checkpoint
            if checkpoint is not None and checkpoint.topic != topic.name:
                checkpoint = None
            imported = self._build_topic(topic, state, checkpoint, this)
            if imported is None:
                return False
            sync_path(self._path / progress.FOLDER / progress.TOPICS)
            state.done.append(imported)
            state.checkpoint = None
            progress.save(self._path, state)
        this.save()
        return True

    def _build_topic(
        self, topic: TopicPlan, state: ImportState, checkpoint: Checkpoint | None, this: Node
    ) -> Imported | None:
        def save(reached: Checkpoint) -> None:
            state.checkpoint = reached
            progress.save(self._path, state)

        def go_on() -> bool:
            if time.monotonic() - self._told_at >= TELL_EVERY:
                self._told_at = time.monotonic()
                share = 100 * (size - building.bytes_left) // size if size else 100
                logger.info(
                    "IMPORT: topic %s: %d messages so far, %d%% of %d bytes",
                    topic.name, building.messages, share, size,
                )  # fmt: skip
            return not self._stop.is_set()

        building = TopicImport(
            topic,
            self._path / progress.FOLDER / progress.TOPICS / to_file_name(topic.name),
            self._path / node.TOPICS / to_file_name(topic.name),
            self._limits,
            this.lease,
            this.floor,
            self._max_msg_size,
            self._put_aside,
        )
        size = topic.unread_bytes()
        self._told_at = time.monotonic()
        imported = building.run(checkpoint, save, go_on)
        if imported is not None:
            logger.info(
                "IMPORT: topic %s: %d messages of %d queues are %d in the log%s",
                topic.name, imported.copies, len(topic.all_queues), imported.messages,
                building.told_of_attempts(),
            )  # fmt: skip
        return imported

    def _put_aside(self, path: Path, found: Unreadable) -> None:
        """Keep bytes that are no message, as nsqd does with a damaged log; what is torn is only told of."""
        if found.torn:
            logger.warning(
                "IMPORT: the last %d bytes of %s are no whole message: a write was cut off",
                found.length, path,
            )  # fmt: skip
            return
        record, _ = keep(path, Damage(found.offset, found.length))
        logger.error("IMPORT: %s", record)

    # ---- installing

    def _install(self, state: ImportState) -> None:
        """Move what is built to its place, and delete what it was built from. Raises OSError."""
        built = self._path / progress.FOLDER / progress.TOPICS
        topics = self._path / node.TOPICS
        topics.mkdir(mode=0o700, exist_ok=True)
        for imported in state.done:
            source, target = (each / to_file_name(imported.topic) for each in (built, topics))
            if not source.is_dir():
                continue  # an earlier process has moved it
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, topics / f"{DELETED}{os.urandom(8).hex()}")
            os.rename(source, target)
        sync_path(topics)
        sync_path(self._path)
        if state.metadata != metadata.FILE_NAME and not (self._path / metadata.FILE_NAME).exists():
            text = (self._path / state.metadata).read_bytes()
            write_atomically(self._path / metadata.FILE_NAME, text)
        for name, mark in state.originals.items():
            path = self._path / name
            with contextlib.suppress(FileNotFoundError):
                if mark_of(path) == mark:  # else Go's nsqd has run meanwhile, and this is something new
                    path.unlink()
        sync_path(self._path)
        progress.remove(self._path)
        messages = sum(each.copies for each in state.done)
        logger.info(
            "IMPORT: complete: %d topics with %d messages; %d files of Go's nsqd are deleted",
            len(state.done), messages, len(state.originals),
        )  # fmt: skip


def _tell_plan(plan: ImportPlan) -> None:
    for line in warnings_of(plan):
        logger.warning("IMPORT: %s", line)
    if plan.topics:
        logger.info(
            "IMPORT: messages of Go's nsqd: %d topics, %d queues, %d bytes",
            len(plan.topics), sum(len(each.all_queues) for each in plan.topics), plan.unread_bytes(),
        )  # fmt: skip


def warnings_of(plan: ImportPlan) -> list[str]:
    """What an operator should know of a plan, a line each."""
    lines = []
    if plan.renames_metadata:
        lines.append(f"{plan.metadata_path} becomes {metadata.FILE_NAME}")
    for queue in plan.unusable:
        lines.append(f"{queue.name}.diskqueue.* stays as it is: nsqd gives no queue that name")
    for queue in plan.orphans:
        what = "channel" if queue.channel is not None else "topic"
        lines.append(
            f"{metadata.FILE_NAME} does not name {queue.name}, which has messages: the {what} is created"
        )
    for queue in plan.incomplete:
        lines.append(f"{queue.name}.diskqueue.*: {queue.missing()} files are missing")
    for topic in plan.topics:
        for queue in topic.all_queues:
            if queue.meta is None:
                lack = "does not read" if queue.has_meta_file else "is missing"
                lines.append(f"{queue.meta_path.name} {lack}: all messages of the queue are imported")
    return lines
