"""What the checker keeps of messages, connections, topics and channels. Numbers count events."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Message:
    key: str
    topic: str
    due: float
    answered: bool = False
    refused: bool = False
    seen: str = ""  # how: delivered or read
    id: str = ""
    position: int = -1


@dataclass(slots=True)
class Publish:
    number: int
    messages: list[Message]
    connection: Connection | None


@dataclass(slots=True)
class Connection:
    number: int
    member: str
    channel: Channel | None
    rdy: int
    delivered: int = 0
    taken: int = 0  # answers that nsqd has surely taken
    answers: deque[Answer] = field(default_factory=deque)  # those behind them


@dataclass(slots=True, eq=False)
class Answer:
    """A FIN, or a REQ with the time when the message is `due` again."""

    number: int
    at: float
    id: str
    channel: Channel
    connection: Connection
    due: float | None
    taken: int = 0
    certain: int = 0


@dataclass(slots=True, eq=False)
class Channel:
    """`there` and `paused` are None where an order has no answer. `created` is -1 unless it is there."""

    topic: str
    name: str
    there: bool | None = False
    created: int = -1
    paused: bool | None = False
    changed: int = 0  # by the last order, or its answer
    since: int = -1  # of an answered seek: publishes behind it are owed
    sought: int | None = None  # the position of the last seek, if it was answered
    sought_at: int = 0  # when it went out: messages may come before its answer
    moved: bool = False  # seeks undo FINs, and FINs of what was in flight at a seek fail
    owed: dict[str, Message] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)  # key: the last FIN
    certain: dict[str, Answer] = field(default_factory=dict)  # by id
    deliveries: list[tuple[float, Message]] = field(default_factory=list)  # to connections behind a seek

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"

    def owes(self, publish: int) -> bool:
        """Whether a message that was published at `publish` must come."""
        return 0 <= self.created < publish and self.since < publish

    def move(self, number: int) -> None:
        """A seek is under way: what it leaves unfinished is not known."""
        self.moved = True
        self.sought_at = number
        self.since = 1 << 62
        self.sought = None
        self.owed.clear()
        self.certain.clear()
        self.deliveries.clear()

    def clear(self, number: int) -> None:
        """The channel is deleted, or perhaps not."""
        self.changed = number
        self.there = self.paused = None
        self.created = -1
        self.owed.clear()
        self.finished.clear()
        self.certain.clear()


@dataclass(slots=True)
class Topic:
    name: str
    channels: dict[str, Channel] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)  # epoch: the greatest end of the log that was told
    dead: set[str] = field(default_factory=set)  # epochs of logs that are surely deleted
    deletions: int = 0  # that were asked for
    meanings: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)

    def channel(self, name: str) -> Channel:
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(self.name, name)
        return channel
