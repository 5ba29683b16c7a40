"""The events that `on_event` is called with, and the snapshot that `Consumer.stats` returns.

The hook is called on the event loop, when the event happens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from nsquark.errors import ProtocolError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connected:
    """Subscribed, or ready to publish."""

    address: str


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """An attempt to connect failed. The next one follows in `retry_in` seconds, or, if that is None, when an
    nsqlookupd lists the nsqd again.
    """

    address: str
    error: Exception
    retry_in: float | None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection is gone. Without an error, this client closed it."""

    address: str
    error: Exception | None


@dataclass(frozen=True, slots=True)
class BackoffChanged:
    """The consumer backs off for `pause` seconds. At level 0 it has stopped backing off."""

    level: int
    pause: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A message was delivered more than `max_attempts` times and was finished without a handler."""

    message_id: bytes
    attempts: int
    address: str


@dataclass(frozen=True, slots=True)
class AnswerExpired:
    """nsqd refused a FIN, REQ or TOUCH: the message is not in flight on this connection any more."""

    address: str
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """An nsqlookupd could not be asked. Its previous answer still holds."""

    lookupd: str
    error: Exception


@dataclass(frozen=True, slots=True)
class NothingListed:
    """The nsqlookupds know no nsqd that has the topic. This comes once, before the first nsqd is found."""

    topic: str


Event = (
    Connected
    | ConnectionRefused
    | Disconnected
    | BackoffChanged
    | GaveUp
    | AnswerExpired
    | DiscoveryFailed
    | NothingListed
)
EventHook = Callable[[Event], None]


def call_hook(on_event: EventHook | None, event: Event) -> None:
    """Call the user's hook. An exception of the hook is logged and ends there."""
    if on_event is not None:
        try:
            on_event(event)
        except Exception:
            logger.exception("on_event failed on %s", type(event).__name__)


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
    finished: int  # without those that nsqd refused; so are the next two
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
    """The outcome of `Consumer.close`."""

    finished: int  # while it was closing
    requeued: int  # given back, by handlers or by `close`
    abandoned: int  # of those: taken by user code and unanswered when the time was up
