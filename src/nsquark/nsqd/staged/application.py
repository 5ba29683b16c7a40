"""An application that stages batches: what it has put, what it has published, how that is written down.

`app.json` is all that must survive of it beside the stages themselves: the batches it has published last, the
one being published, the one that is prepared, and where its home is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nsquark.errors import NsquarkError

from . import stage_file
from .publication import Intent, Publication

VERSION = 1  # of app.json


class StagingError(NsquarkError):
    """A request that cannot be met; `status` and `code` are those of the HTTP answer."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Stage:
    """The messages that one attempt at one partition has put.

    `records` is -1 until the file of an earlier process has been read.
    """

    __slots__ = (
        "app_topics",
        "attempt",
        "closed",
        "partition",
        "path",
        "records",
        "size",
        "sync_asked",
        "topics",
        "touched",
    )

    def __init__(
        self, path: Path, partition: int, attempt: str, size: int, touched: float, app_topics: set[str]
    ) -> None:
        self.path = path
        self.partition = partition
        self.attempt = attempt
        self.size = size
        self.touched = touched
        self.records = -1 if size else 0
        self.topics: dict[str, int] = {}
        self.sync_asked = size  # how many of its bytes an fsync was asked for before it is published
        self.app_topics = app_topics  # those of its application, one set for all stages
        self.closed = False  # it is being published

    @property
    def messages(self) -> int:
        return sum(self.topics.values())

    def recover(self) -> stage_file.Contents:
        """Look into a file that this process has not written. For a thread. Raises OSError."""
        batch = self.path.parent
        return stage_file.recover(self.path, batch.parent / f"{batch.name}.{self.path.name}")

    def known(self, contents: stage_file.Contents) -> None:
        self.size, self.records, self.topics = contents.size, contents.records, contents.topics
        self.app_topics.update(contents.topics)

    def count(self, topic: str, messages: int, size: int, now: float) -> None:
        """A put was added, and the file is that long now."""
        self.size = size
        self.records += 1
        self.topics[topic] = self.topics.get(topic, 0) + messages
        self.app_topics.add(topic)
        self.touched = now


Stages = dict[tuple[int, str], Stage]


class Published(NamedTuple):
    """An answer: whether the batch was published before, and what it brought to each topic."""

    known: bool
    batch: int
    topics: Mapping[str, int] | None  # None: too long ago
    note: str = ""  # of the last batch only


class Wanted(NamedTuple):
    """The stage that counts for a partition, and how many messages it must have."""

    partition: int
    attempt: str
    messages: int


class Home(NamedTuple):
    """The nsqd that decides which batches of an application are published, where several take part."""

    node: str
    url: str


class State(NamedTuple):
    """The content of `app.json`."""

    last: int
    published: dict[int, dict[str, int]]
    intent: Intent | None
    note: str
    prepared: int
    home: Home | None


def parse_state(data: bytes) -> State:
    """Raises ValueError, TypeError or KeyError."""
    try:
        return _parse_state(data)
    except (AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _parse_state(data: bytes) -> State:
    known = json.loads(data)
    if not isinstance(known, dict):
        raise ValueError("no object")
    home = known.get("home")
    return State(
        int(known["last"]),
        {int(batch): dict(topics) for batch, topics in known["published"]},
        Intent.from_json(known["publishing"]) if known["publishing"] else None,
        str(known.get("note", "")),
        int(known.get("prepared", -1)),
        None if home is None else Home(str(home[0]), str(home[1])),
    )


@dataclass(slots=True, eq=False)
class App:
    name: str
    directory: Path
    touched: float
    batches: dict[int, Stages] = field(default_factory=dict)
    published: dict[int, dict[str, int]] = field(default_factory=dict)  # the last ones, in order
    topics: set[str] = field(default_factory=set)  # staged for or published to, as far as is remembered
    unread: list[Stage] = field(default_factory=list)  # of an earlier process: `topics` may lack theirs
    last: int = -1
    note: str = ""  # what came with the last batch
    prepared: int = -1  # a batch whose stages were promised to be kept
    home: Home | None = None
    publication: Publication | None = None  # one whose intent is on the disk
    task: asyncio.Task[Any] | None = None

    def batch_directory(self, batch: int) -> Path:
        return self.directory / str(batch)

    def is_known(self, batch: int) -> bool:
        publication = self.publication
        return batch <= self.last or (publication is not None and batch <= publication.intent.batch)

    def as_json(self) -> bytes:
        known = {
            "version": VERSION,
            "app": self.name,
            "last": self.last,
            "published": [[batch, topics] for batch, topics in self.published.items()],
            "publishing": None if self.publication is None else self.publication.intent.as_json(),
            "note": self.note,
            "prepared": self.prepared,
            "home": self.home,
        }
        return json.dumps(known, separators=(",", ":")).encode()
