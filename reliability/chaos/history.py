"""What clients sent and got, and what happened to the group: the events of a history, in their order.

All clients are one process, so their events have one order. An event that a client causes is entered before
its bytes are sent. An event that nsqd causes is entered when its bytes are read. `at` is the time of day, in
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# ---- the group


@dataclass(slots=True)
class Round:
    at: float
    number: int


@dataclass(slots=True)
class PrimaryLost:
    """A fault takes the primary away. `alone`: nothing else is wrong, and another member is in sync."""

    at: float
    fault: str
    alone: bool


@dataclass(slots=True)
class Stuck:
    """Everything is mended, and the group is not what it should be again."""

    at: float
    text: str


@dataclass(slots=True)
class Diverged:
    """Members in sync have different bytes."""

    at: float
    text: str


# ---- connections


@dataclass(slots=True)
class Connected:
    """A connection to a member is ready; its handshake was answered.

    A consumer's has a topic and a channel, and at most `rdy` messages are in flight on it.
    """

    at: float
    connection: int
    member: str
    topic: str = ""
    channel: str = ""
    rdy: int = 0


# ---- publishing


@dataclass(slots=True)
class Publishing:
    """A publish goes out; `connection` is 0 where it is not known or is not one of TCP.

    The publishes of a staged batch have its name as `batch`, and may go out more than once.
    """

    at: float
    operation: int
    topic: str
    keys: tuple[str, ...]
    delay: float = 0.0
    connection: int = 0
    batch: str = ""


@dataclass(slots=True)
class Published:
    """The publish was answered OK."""

    at: float
    operation: int


@dataclass(slots=True)
class Refused:
    """The publish was answered with an error, or was never sent: it is surely not stored."""

    at: float
    operation: int


@dataclass(slots=True)
class Unanswered:
    """The connection broke, or the answer did not come in time: the publish may be stored or not."""

    at: float
    operation: int


# ---- consuming


@dataclass(slots=True)
class Delivered:
    at: float
    connection: int
    id: str
    key: str


@dataclass(slots=True)
class Finishing:
    at: float
    connection: int
    id: str


@dataclass(slots=True)
class Requeuing:
    at: float
    connection: int
    id: str
    delay: float


# ---- operators


@dataclass(slots=True)
class Ordering:
    """A request to create, delete, pause, unpause or seek goes out, without `channel` about the topic."""

    at: float
    operation: int
    action: str
    topic: str
    channel: str = ""


@dataclass(slots=True)
class Ordered:
    """The request was answered with success; `position` is where a seek has moved the channel."""

    at: float
    operation: int
    position: int = -1


@dataclass(slots=True)
class OrderUnanswered:
    """There was no answer, or one that promises nothing: the request may be carried out or not."""

    at: float
    operation: int


@dataclass(slots=True)
class Looking:
    """The primary is asked for its topics and channels."""

    at: float
    operation: int


@dataclass(slots=True)
class Looked:
    """`channels`: by topic and name of a channel, whether it is paused."""

    at: float
    operation: int
    channels: dict[str, dict[str, bool]]


# ---- readers of logs


@dataclass(slots=True)
class RangeAsked:
    at: float
    operation: int
    topic: str


@dataclass(slots=True)
class RangeTold:
    at: float
    operation: int
    epoch: str
    next: int


@dataclass(slots=True)
class LogRead:
    """A part of a log. An entry is the position, the id and the key of a message.

    `whole`: it is all of the log, when everything is mended and nothing is published any more.
    """

    at: float
    topic: str
    epoch: str
    entries: list[tuple[int, str, str]]
    whole: bool = False


# ---- the end


@dataclass(slots=True)
class Strange:
    """Something came that no nsqd may send."""

    at: float
    text: str


@dataclass(slots=True)
class Drained:
    """Everything is mended, and nothing came for long enough: what is owed now is lost."""

    at: float


Event = (
    Round | PrimaryLost | Stuck | Diverged | Connected | Publishing | Published | Refused | Unanswered
    | Delivered | Finishing | Requeuing | Ordering | Ordered | OrderUnanswered | Looking | Looked
    | RangeAsked | RangeTold | LogRead | Strange | Drained
)  # fmt: skip

History = Iterable[Event]
