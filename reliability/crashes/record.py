"""What the clients share: topics, bodies, the history as it grows, and what they know from earlier lives."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field

from tests.daemon import dpub, mpub, pub, sized

from . import history as h
from .checker import Checker

# What is done where. Topics on which less is done to the channels are those of which more is certain.
ORDERS, MOVES, BRIEF, SLOW, BACKLOG = "orders", "moves", "brief", "slow", "backlog"
CHANNELS = {
    ORDERS: ("billing", "shipping"),  # pauses
    MOVES: ("seeker", "committer"),  # seeks, commits, empties
    BRIEF: ("left", "right"),  # topic and channels are deleted and created again
    SLOW: ("patient",),  # message timeouts
    BACKLOG: (),  # gets its channel at the end
}
LATE = "late"  # that channel
SHORT_TIMEOUT, LONG_TIMEOUT = 0.06, 60.0
LONGEST_DELAY_MS = 250
MARK = b"." * 16  # an id that no message has
SIZES = (0, 0, 0, 0, 100, 100, 1000, 8000)


def asked_timeout(timeout: float) -> int:
    """For IDENTIFY, which takes no timeout as short as the one that nsqd's flag has set."""
    return 0 if timeout == SHORT_TIMEOUT else round(timeout * 1000)


def body_of(key: str, size: int) -> bytes:
    return b"%b %d " % (key.encode(), size) + b"x" * size


def key_of(body: bytes) -> str | None:
    """The key of a message, or None if it is not as it was published."""
    head = body[:60].split(b" ", 2)
    if len(head) < 3 or not head[1].isdigit():
        return None
    key = head[0].decode("ascii", "replace")
    return key if body == body_of(key, int(head[1])) else None


def mpub_body(bodies: list[bytes]) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(sized(each) for each in bodies)


@dataclass
class Publish:
    """A publish that can be repeated."""

    kind: str
    topic: str
    keys: tuple[str, ...]
    bodies: list[bytes]
    delay_ms: int = 0
    repeats: bool = False

    def command(self) -> bytes:
        if self.kind == "MPUB":
            return mpub(self.topic, self.bodies)
        if self.kind == "DPUB":
            return dpub(self.topic, self.delay_ms, self.bodies[0])
        return pub(self.topic, self.bodies[0])


Row = tuple[str, int, str, bytes]  # topic, defer in ms, key, body


@dataclass
class App:
    """An application that stages batches. It remembers the batch it is at over the lives of nsqd."""

    name: str
    batch: int = 0
    rows: list[list[Row]] = field(default_factory=list)  # of the batch, by partition
    operations: list[int] = field(default_factory=list)  # of the publish, once it was tried


class Record:
    """The history of a series, fed to the checker as it grows, and what was tried."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.events: list[h.Event] = []
        self.counts: Counter[str] = Counter()
        self._operations = 0

    def add(self, event: h.Event) -> None:
        self.events.append(event)
        self.checker.feed(event)

    def operation(self) -> int:
        self._operations += 1
        return self._operations


@dataclass
class Memory:
    """What the clients know from earlier lives."""

    unanswered: list[Publish] = field(default_factory=list)
    apps: list[App] = field(default_factory=lambda: [App("one"), App("two")])
    read: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # epoch and end of each log, as far as it was read
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # first and next of each log
