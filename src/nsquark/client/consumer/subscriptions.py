"""The subscriptions of a consumer, and what they share: the queue of messages, RDY, backoff, the counters.

Everything happens on the event loop, in calls: a connection brings messages, user code takes and answers
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ..config import Config
from ..events import ConnectionStats, ConsumerStats, Disconnected, Event, EventHook, call_hook
from ..message import Message
from .counters import ConsumerCounters
from .flow_control import FlowControl
from .max_attempts import GiveUpHook, MaxAttempts
from .message_queue import MessageQueue
from .rdy import RdyShare
from .subscription import Subscription


class Subscriptions:
    """A consumer makes this when it starts, on its event loop."""

    def __init__(
        self,
        topic: str,
        channel: str,
        config: Config,
        on_give_up: GiveUpHook | None,
        on_event: EventHook | None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.counters = ConsumerCounters()
        self.queue = MessageQueue()
        self.flow = FlowControl(f"{topic}/{channel}", config, self._send_rdy, self.emit)
        self._on_event = on_event
        self._max_attempts = MaxAttempts(config.max_attempts, on_give_up, self.counters, self.emit)
        self._by_share: dict[RdyShare, Subscription] = {}

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._by_share.values()))

    def emit(self, event: Event) -> None:
        call_hook(self._on_event, event)

    def in_flight(self) -> int:
        return sum(share.in_flight for share in self._by_share)

    def _send_rdy(self, share: RdyShare, rdy: int) -> None:
        subscription = self._by_share[share]
        if not subscription.draining:
            subscription.connection.send(b"RDY %d\n" % rdy)

    # ---- connections

    def add(self, subscription: Subscription) -> None:
        self._by_share[subscription.share] = subscription
        self.flow.add(subscription.share)

    def lost(self, subscription: Subscription) -> None:
        """A connection is gone. Its messages that were not taken are dropped."""
        self.queue.drop(subscription)
        if self._by_share.pop(subscription.share, None) is None:
            return  # it was lost before `add`
        if subscription.error is not None:
            self.counters.last_error = subscription.error
        self.flow.remove(subscription.share)
        self.emit(Disconnected(subscription.address, subscription.error))

    def leave(self, subscription: Subscription) -> None:
        """Give the connection no more RDY, and close it when all its messages are answered."""
        self.flow.retire(subscription.share)
        subscription.start_drain()

    # ---- messages

    def received(self, subscription: Subscription, messages: list[Message]) -> None:
        counters, queue = self.counters, self.queue
        counters.received += len(messages)
        in_flight = self.in_flight() if len(self._by_share) > 1 else subscription.share.in_flight
        if in_flight > counters.most_in_flight:
            counters.most_in_flight = in_flight
        self.flow.messages_received(subscription.share, messages[0].stamp)
        if queue.closing and not queue.workers:
            for message in messages:
                _give_back(message)
            subscription.close_if_drained()
        else:
            queue.put(self._max_attempts.remove_spent(messages))

    def give_back_queue(self) -> None:
        """Requeue the messages that no task will take."""
        ready = self.queue.ready
        while ready:
            message = ready.popleft()
            if message.source.lost:
                message.answered = True
            else:
                _give_back(message)
                message.source.close_if_drained()

    # ---- the end

    def start_closing(self) -> None:
        """Send CLS everywhere. Workers take the messages in the queue; without workers they are requeued."""
        self.queue.close()
        self.flow.stop()
        for subscription in self:
            subscription.start_drain()
        if not self.queue.workers:
            self.give_back_queue()

    def end(self) -> None:
        """Requeue what is still in the queue, and hand out nothing more."""
        self.give_back_queue()
        self.queue.end()
        self._max_attempts.cancel_hooks()

    def stats(self, last_lookup: float | None) -> ConsumerStats:
        """A snapshot. `last_lookup` is the loop's time at which an nsqlookupd last answered."""
        counters = self.counters
        return ConsumerStats(
            received=counters.received,
            finished=counters.finished,
            requeued=counters.requeued,
            touched=counters.touched,
            discarded=counters.discarded,
            gave_up=counters.gave_up,
            expired_answers=counters.expired_answers,
            queued=len(self.queue.ready),
            in_flight=self.in_flight(),
            most_in_flight=counters.most_in_flight,
            max_in_flight=self.flow.sharing.max_in_flight,
            backoff_level=self.flow.backoff.level,
            connections=tuple(map(_connection_stats, self)),
            last_error=counters.last_error,
            discovery_age=None if last_lookup is None else asyncio.get_running_loop().time() - last_lookup,
        )


def _give_back(message: Message) -> None:
    """REQ without a delay, and without backoff."""
    subscription = message.source
    message.answered = True
    subscription.share.in_flight -= 1
    subscription.give_back(message.id)


def _connection_stats(subscription: Subscription) -> ConnectionStats:
    share = subscription.share
    version = subscription.connection.identify_response.version
    return ConnectionStats(subscription.address, share.rdy, share.in_flight, version)
