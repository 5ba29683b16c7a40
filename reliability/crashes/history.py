"""What clients sent and got, as it happened: the events of a history, in their order.

The clients of a run are one process, so their events have one order. An event that a client causes is entered
before its bytes are sent. An event that nsqd causes is entered when its bytes are read, in the order of the
connection. `at` is the time of day, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# ---- the process


@dataclass(slots=True)
class Started:
    at: float
    round: int


@dataclass(slots=True)
class Killed:
    """SIGKILL, and the process is gone. It ends all connections."""

    at: float


@dataclass(slots=True)
class Stopped:
    """SIGTERM, and the process has ended in order. It ends all connections."""

    at: float


# ---- publishing


@dataclass(slots=True)
class Publishing:
    """A publish goes out: its messages are stored together or not at all.

    The publishes of a staged batch have its name as `batch`: all of them happen, and once. `repeats` says
    that the same keys went out before, and that there was no answer.
    """

    at: float
    operation: int
    topic: str
    keys: tuple[str, ...]
    delay: float = 0.0
    batch: str = ""
    repeats: bool = False


@dataclass(slots=True)
class Published:
    """The publish was answered OK."""

    at: float
    operation: int


# ---- consuming


@dataclass(slots=True)
class Subscribing:
    """SUB goes out. `timeout` is the message timeout of the connection."""

    at: float
    connection: int
    topic: str
    channel: str
    timeout: float


@dataclass(slots=True)
class Subscribed:
    at: float
    connection: int


@dataclass(slots=True)
class Disconnected:
    at: float
    connection: int


@dataclass(slots=True)
class Delivered:
    """A message was read. A dead letter has the `key` of the message that died, and `died_in` is where."""

    at: float
    connection: int
    id: str
    timestamp: int
    attempts: int
    key: str
    died_in: tuple[str, str] | None = None


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


@dataclass(slots=True)
class Touching:
    at: float
    connection: int
    id: str


@dataclass(slots=True)
class AnswerFailed:
    """E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED."""

    at: float
    connection: int
    id: str
    command: str


@dataclass(slots=True)
class Asking:
    """A command that will be answered goes out on a consumer's connection."""

    at: float
    connection: int


@dataclass(slots=True)
class Answered:
    """The answer to the oldest `Asking` that has none."""

    at: float
    connection: int


# ---- operators


@dataclass(slots=True)
class Ordering:
    """A request to create, delete, empty, pause, unpause, seek or commit goes out.

    Without `channel` it is about the topic.
    """

    at: float
    operation: int
    action: str
    topic: str
    channel: str = ""
    position: int = -1  # of a commit


@dataclass(slots=True)
class Ordered:
    """The request was answered with success; `position` is where a seek has moved the channel."""

    at: float
    operation: int
    position: int = -1


@dataclass(slots=True)
class OrderFailed:
    """The request was answered, but not with success."""

    at: float
    operation: int


@dataclass(slots=True)
class Promised:
    """The topic has no channel. The one of this name will be its first, and will get the backlog."""

    at: float
    topic: str
    channel: str


# ---- looking


@dataclass(slots=True)
class LogRead:
    """The log of a topic from `start` to `next`, before anything was published in this life.

    An entry is the position, the id and the key of a message.
    """

    at: float
    topic: str
    epoch: str
    origin: int
    first: int
    next: int
    start: int
    entries: list[tuple[int, str, str]]


@dataclass(slots=True)
class Strange:
    """Something came that no nsqd may send."""

    at: float
    text: str


@dataclass(slots=True)
class Drained:
    """All that came was finished, and nothing more came for long enough: what is owed now is lost."""

    at: float


Event = (
    Started | Killed | Stopped | Publishing | Published | Subscribing | Subscribed | Disconnected | Delivered
    | Finishing | Requeuing | Touching | AnswerFailed | Asking | Answered | Ordering | Ordered | OrderFailed
    | Promised
    | LogRead | Strange | Drained
)  # fmt: skip

History = Iterable[Event]
