"""What `on_event` is called with, on the event loop, as it happens; and what `stats()` shows."""

from __future__ import annotations

from dataclasses import dataclass

from nsquark.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Connected:
    """Subscribed, or ready to publish."""

    address: str


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """An attempt to connect failed. `retry_in` seconds, or None: when a lookupd lists it again."""

    address: str
    error: Exception
    retry_in: float | None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection is gone. No error: we closed it."""

    address: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BackoffChanged:
    """The consumer backs off, for `pause` seconds, or at level 0 is through with it."""

    level: int
    pause: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A message has had all its attempts and was finished without a handler."""

    message_id: bytes
    attempts: int
    address: str


@dataclass(frozen=True, slots=True)
class AnswerExpired:
    """nsqd refused a FIN, REQ or TOUCH: the message is not in flight here any more."""

    address: str
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """An nsqlookupd could not be asked. What it said before still holds."""

    lookupd: str
    error: Exception


Event = (
    Connected | ConnectionRefused | Disconnected | BackoffChanged | GaveUp | AnswerExpired | DiscoveryFailed
)


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    address: str
    rdy: int
    in_flight: int
    version: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A snapshot of a consumer."""

    received: int
    finished: int
    requeued: int
    touched: int
    discarded: int
    gave_up: int
    expired_answers: int  # refused by nsqd, or too late for a connection that is gone
    queued: int  # received and not yet handed out
    in_flight: int
    most_in_flight: int  # ever
    max_in_flight: int
    backoff_level: int
    connections: tuple[ConnectionStats, ...]
    last_error: Exception | None
    discovery_age: float | None  # seconds since an nsqlookupd last answered


@dataclass(frozen=True, slots=True)
class Drained:
    """How `Consumer.close` went."""

    finished: int  # while it was closing
    requeued: int  # given back, by handlers or by `close`
    abandoned: int  # of those: still in the hands of user code when the time was up
