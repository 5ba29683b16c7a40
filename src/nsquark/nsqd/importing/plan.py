"""What there is to import: the disk queues that Go's nsqd has left in a data directory, by topic."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from nsquark.diskqueue import QueueFiles, find_queues
from nsquark.names import to_file_name
from nsquark.nsqd.storage import metadata, node
from nsquark.nsqd.storage.metadata import TopicMetadata

logger = logging.getLogger(__name__)

_OLD_METADATA = re.compile(r"nsqd\.(\d{1,9})\.dat")
FileMark = list[int]  # size and time of the last change: whether a file is still the same


@dataclass(slots=True)
class TopicPlan:
    """A topic with unread messages in its own queue or in those of its channels."""

    name: str
    paused: bool
    channels: list[str]  # those that nsqd.dat names, and those that have a queue
    queues: list[QueueFiles]  # those of channels, by name
    own_queue: QueueFiles | None = None

    @property
    def all_queues(self) -> list[QueueFiles]:
        return [*self.queues, *([self.own_queue] if self.own_queue is not None else [])]

    def unread_bytes(self) -> int:
        return sum(each.unread_bytes() for each in self.all_queues)


@dataclass(slots=True)
class ImportPlan:
    """What an import has to do."""

    data_path: Path
    metadata_path: Path  # nsqd.dat, or the name that nsqd before 1.0 gave it
    topics: list[TopicPlan] = field(default_factory=list)
    originals: dict[str, FileMark] = field(default_factory=dict)  # the files that go in the end, by name
    orphans: list[QueueFiles] = field(default_factory=list)  # queues that nsqd.dat does not name
    incomplete: list[QueueFiles] = field(default_factory=list)  # queues of which files are missing
    unusable: list[QueueFiles] = field(default_factory=list)  # queues with a name that nsqd does not give

    @property
    def renames_metadata(self) -> bool:
        return self.metadata_path.name != metadata.FILE_NAME

    @property
    def empty(self) -> bool:
        return not self.originals and not self.renames_metadata

    def unread_bytes(self) -> int:
        return sum(each.unread_bytes() for each in self.topics)

    def marks_of_topics(self) -> dict[str, list[list[int | str]]]:
        """The files of those topics of the plan that nsquark has already, to see whether they change."""
        return {
            each.name: files
            for each in self.topics
            if (files := _marks(self.data_path / node.TOPICS / to_file_name(each.name)))
        }


def make_plan(data_path: Path, node_id: int) -> ImportPlan:
    """Look at a data directory. Raises BadMetadata and OSError."""
    metadata_path = find_metadata(data_path, node_id)
    plan = ImportPlan(data_path, metadata_path)
    known = metadata.load(metadata_path)
    by_topic: dict[str, list[QueueFiles]] = {}
    for queue in find_queues(data_path):
        if not queue.usable:
            plan.unusable.append(queue)
            continue
        for path in queue.paths:
            plan.originals[path.name] = mark_of(path)
        if queue.missing():
            plan.incomplete.append(queue)
        if queue.unread():
            by_topic.setdefault(queue.topic, []).append(queue)
            if not _is_named(queue, known):
                plan.orphans.append(queue)
    for name, queues in sorted(by_topic.items()):
        topic = known.get(name, TopicMetadata())
        of_channels = [each for each in queues if each.channel is not None]
        own = next((each for each in queues if each.channel is None), None)
        channels = dict.fromkeys([*topic.channels, *(each.channel or "" for each in of_channels)])
        plan.topics.append(TopicPlan(name, topic.paused, list(channels), of_channels, own))
    return plan


def _is_named(queue: QueueFiles, known: dict[str, TopicMetadata]) -> bool:
    topic = known.get(queue.topic)
    return topic is not None and (queue.channel is None or queue.channel in topic.channels)


def find_metadata(data_path: Path, node_id: int) -> Path:
    """nsqd.dat, unless there is only what nsqd before 1.0 called `nsqd.<node id>.dat`."""
    path = data_path / metadata.FILE_NAME
    if path.exists() or (data_path / node.TOPICS).exists():
        return path
    old = {
        int(match[1]): data_path / entry
        for entry in os.listdir(data_path)
        if (match := _OLD_METADATA.fullmatch(entry)) and (data_path / entry).is_file()
    }
    if not old:
        return path
    if node_id in old:
        return old[node_id]
    newest = max(old.values(), key=lambda each: each.stat().st_mtime_ns)
    logger.warning("%s is that of another --node-id than %d, and is used all the same", newest, node_id)
    return newest


def mark_of(path: Path) -> FileMark:
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


def _marks(directory: Path) -> list[list[int | str]]:
    names = sorted(os.listdir(directory)) if directory.is_dir() else []
    return [[name, *mark_of(directory / name)] for name in names]
