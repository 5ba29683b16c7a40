"""A message that a consumer hands out, and the two exceptions by which a handler chooses its answer."""

from __future__ import annotations

import json
import time
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, NewType, Self

from nsquark.wire.message import Delivery

if TYPE_CHECKING:
    from .consumer.subscription import Subscription

MessageId = NewType("MessageId", bytes)


class Requeue(Exception):
    """Raised by a handler: give the message back, to be delivered again after `delay` seconds.

    Without a delay, the attempts of the message decide it. With `backoff=False` the consumer does not slow
    down.
    """

    def __init__(self, delay: float | None = None, *, backoff: bool = True) -> None:
        super().__init__(delay)
        self.delay = delay
        self.backoff = backoff


class Discard(Exception):
    """Raised by a handler: finish the message, and count it as discarded."""


class Message(Delivery):
    """A message in flight. Answer it once: `finish`, or `requeue`; `touch` asks for more time.

    All of them may be called from any task or thread, and none of them waits. Leaving `async with message`
    (or `with message`) finishes it, or requeues it if the block raises.

    `id`, `body`, `attempts` (1 at the first delivery) and `timestamp_ns` (when it was published) are as nsqd
    sent them.
    """

    __slots__ = ()
    source: Subscription

    @property
    def topic(self) -> str:
        return self.source.topic

    @property
    def channel(self) -> str:
        return self.source.channel

    @property
    def nsqd_address(self) -> str:
        return self.source.address

    def finish(self) -> bool:
        """FIN. False if the answer is too late: the connection is gone, or the message has timed out.

        Raises UsageError if the message was answered before.
        """
        return self.source.finish(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> bool:
        """REQ: deliver it again after `delay` seconds, by default `default_requeue_delay` × attempts.

        With `backoff` the consumer counts a failure and slows down. The result is that of `finish`.
        """
        return self.source.requeue(self, delay, backoff)

    def touch(self) -> bool:
        """TOUCH: `msg_timeout` begins anew. False if the message is answered already or has timed out."""
        return self.source.touch(self)

    def disable_auto_response(self) -> None:
        """Call this in a handler whose message another task will answer later."""
        self.source.manual.add(self.id)

    @property
    def has_responded(self) -> bool:
        return self.answered

    @property
    def connection_lost(self) -> bool:
        """Whether the connection of this message is gone: nsqd will deliver the message again."""
        return self.source.lost

    def time_left(self, *, hard: bool = False) -> float:
        """Seconds until nsqd times the message out; with `hard`, until it does so in spite of any `touch`."""
        return self.source.time_left(self, hard)

    @property
    def is_expired(self) -> bool:
        """Whether nsqd has timed the message out, as far as this client knows."""
        return self.source.is_expired(self)

    @property
    def age(self) -> float:
        """Seconds since it was published, by this machine's clock."""
        return time.time() - self.timestamp_ns / 1e9

    def json(self) -> Any:
        return json.loads(self.body)

    # ---- with

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.source.settle(self, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.source.settle(self, error)

    def dropped(self) -> None:
        if self.source.forgotten(self):
            warnings.warn(f"{self!r} was let go unanswered", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return (
            f"<Message {self.id.decode('ascii', 'replace')}, attempt {self.attempts}, {len(self.body)} bytes>"
        )
