"""`nsquark export`: what a stopped nsqd still owes, as a data directory that Go's nsqd opens.

Every channel gets a disk queue with its unfinished messages, and every topic one with what was not passed on
to its channels. Go's disk queues have no due times: deferred messages are delivered as soon as it starts.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nsquark.diskqueue import QueuedMessage, QueueWriter
from nsquark.durable import replace_file, sync_path
from nsquark.errors import NsquarkError
from nsquark.names import from_file_name
from nsquark.nsqd.storage import metadata
from nsquark.nsqd.storage.inspection import STAGED, check_node_version
from nsquark.nsqd.storage.metadata import ChannelMetadata, TopicMetadata

from .check import topic_directories
from .new_folder import new_folder
from .unfinished import OWN_QUEUE, UnfinishedMessages


class ExportFailed(NsquarkError):
    """There is no export; what was begun of it is deleted."""


@dataclass(slots=True)
class Export:
    """What an export has written."""

    target: Path
    queues: dict[str, int] = field(default_factory=dict)  # messages by the name of the queue
    topics: int = 0
    deferred: int = 0  # messages that would not be due yet
    lost: int = 0  # messages that are damaged in the logs
    largest: int = 0  # bytes of the largest body
    staged: bool = False  # there are staged batches, which are not exported

    @property
    def messages(self) -> int:
        return sum(self.queues.values())


def export(
    data_path: Path,
    target: Path,
    max_bytes_per_file: int = 100 << 20,
    tell: Callable[[str, int], None] = lambda topic, messages: None,
) -> Export:
    """Write the unfinished messages of `data_path` to `target`, which must not exist or be empty.

    The disk holds it when this returns. `tell` hears of the progress. Raises ExportFailed, NotADataPath,
    DataRefused, BadMetadata, UnknownVersion, LogCorrupt and OSError; `target` does not exist then.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(new_folder(data_path, target, "export", ExportFailed))
        _lock(data_path, stack)
        check_node_version(data_path)
        result = _Writing(data_path, folder, Export(target), max_bytes_per_file, tell).run()
        sync_path(folder)
    return result


def _lock(data_path: Path, stack: ExitStack) -> None:
    """Keep nsqd from starting meanwhile. Raises ExportFailed if it runs."""
    fd = os.open(data_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ExportFailed(f"{data_path} is in use by an nsqd: stop it before an export") from None


class _Writing:
    def __init__(
        self, source: Path, target: Path, result: Export, max_bytes: int, tell: Callable[[str, int], None]
    ) -> None:
        self._source = source
        self._target = target
        self._result = result
        self._max_bytes_per_file = max_bytes
        self._tell = tell
        self._now = time.time_ns()

    def run(self) -> Export:
        known = metadata.load(self._source / metadata.FILE_NAME)
        for directory in topic_directories(self._source):
            name = from_file_name(directory.name)
            topic = known.setdefault(name, TopicMetadata())
            unfinished = UnfinishedMessages(directory, list(topic.channels), topic.paused)
            for channel in unfinished.channels:
                topic.channels.setdefault(channel, ChannelMetadata())
            self._write_topic(name, unfinished)
        for topic in known.values():
            for each in topic.channels.values():
                each.max_attempts = None  # ours: Go's nsqd has no such thing
        self._result.topics = len(known)
        staged = self._source / STAGED
        self._result.staged = staged.is_dir() and any(staged.glob("*/*/*"))
        path = self._target / metadata.FILE_NAME
        replace_file(path, metadata.pack_known(known), path.with_name(path.name + ".tmp"), 0o600)
        return self._result

    def _write_topic(self, topic: str, unfinished: UnfinishedMessages) -> None:
        result = self._result
        writers: dict[str, QueueWriter] = {}
        with ExitStack() as stack:
            for number, (message, attempts, due) in enumerate(unfinished):
                result.deferred += due > self._now
                result.largest = max(result.largest, len(message.body))
                for channel, count in attempts.items():
                    writer = writers.get(channel)
                    if writer is None:
                        name = topic if channel == OWN_QUEUE else f"{topic}:{channel}"
                        writer = QueueWriter(self._target, name, self._max_bytes_per_file)
                        writers[channel] = writer
                        stack.callback(writer.abandon)
                    message_id = message.id.encode("ascii")
                    writer.add(QueuedMessage(message.timestamp_ns, count, message_id, message.body))
                if number % 10_000 == 0:
                    self._tell(topic, number)
            for channel, writer in writers.items():
                writer.close()
                result.queues[topic if channel == OWN_QUEUE else f"{topic}:{channel}"] = writer.depth
        result.lost += unfinished.lost
