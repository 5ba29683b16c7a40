"""What the connections of a consumer share: the queue of messages, RDY, backoff, the counters.

Everything happens on the event loop, in calls: a connection brings messages, user code takes and answers
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from .backoff import BackoffState, Signal, Step
from .config import Config
from .events import BackoffChanged, Disconnected, Event, GaveUp
from .message import Message
from .rdy import Lane, RdySharing
from .subscription import Subscription

logger = logging.getLogger(__name__)

GiveUpHook = Callable[[Message], Awaitable[None]]
EventHook = Callable[[Event], None]


class Engine:
    """Made by a consumer when it starts, on its event loop."""

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
        self.subscriptions: dict[Lane, Subscription] = {}
        self.backoff = BackoffState(config.backoff)
        self.sharing = RdySharing(
            config.max_in_flight,
            self._send_rdy,
            idle_timeout=config.low_rdy_idle_timeout,
            hold_timeout=config.low_rdy_timeout,
        )
        self.ready: deque[Message] = deque()
        self.takers = 0  # worker tasks that will take whatever is in the queue, even while closing
        self.closing = False  # nothing is handed out but to workers
        self.ended = False  # nothing at all
        self.received_count = self.finished = self.requeued = self.touched = 0
        self.discarded = self.gave_up = self.expired_answers = self.most_in_flight = 0
        self.last_error: Exception | None = None
        self._on_give_up = on_give_up
        self._on_event = on_event
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._hooks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._tick = self._loop.call_later(config.rdy_redistribute_interval, self._redistribute)

    def emit(self, event: Event) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed on %s", type(event).__name__)

    # ---- connections

    def joined(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.lane] = subscription
        if not self.closing:
            self.sharing.add(subscription.lane, self._loop.time())
            self._schedule_share()

    def lost(self, subscription: Subscription) -> None:
        """What it brought and nobody has taken is nsqd's again."""
        mine = [message for message in self.ready if message.source is subscription]
        if mine:
            for message in mine:
                message.answered = True
            self.ready = deque(message for message in self.ready if message.source is not subscription)
        if self.subscriptions.pop(subscription.lane, None) is None:
            return  # it never joined
        if subscription.error is not None:
            self.last_error = subscription.error
        self.sharing.remove(subscription.lane, self._loop.time())
        self._schedule_share()
        self.emit(Disconnected(subscription.address, subscription.error))

    def leave(self, subscription: Subscription) -> None:
        """It gets no more RDY, and closes when all is answered."""
        self.sharing.retire(subscription.lane, self._loop.time())
        self._schedule_share()
        subscription.start_drain()

    def in_flight(self) -> int:
        return sum(lane.in_flight for lane in self.subscriptions)

    # ---- RDY

    def _send_rdy(self, lane: Lane, rdy: int) -> None:
        subscription = self.subscriptions[lane]
        if not subscription.draining:
            subscription.connection.send(b"RDY %d\n" % rdy)

    def share(self) -> None:
        self.sharing.share(self._loop.time())
        self._schedule_share()

    def change_max_in_flight(self, max_in_flight: int) -> None:
        if max_in_flight != self.sharing.max_in_flight:
            self.sharing.change(max_in_flight, self._loop.time())
            self._schedule_share()

    def _schedule_share(self) -> None:
        """Come back when a lowered RDY has settled, if somebody waits for that."""
        if self.sharing.waiting and self._wake is None and not self.closing:
            now = self._loop.time()
            when = self.sharing.next_wake(now)
            if when is not None:
                self._wake = self._loop.call_later(when - now, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.share()

    def _redistribute(self) -> None:
        self._tick = self._loop.call_later(self.config.rdy_redistribute_interval, self._redistribute)
        self.sharing.tick(self._loop.time())
        self._schedule_share()

    # ---- backoff

    def signal(self, signal: Signal) -> None:
        step = self.backoff.signal(signal)
        if step is Step.NOTHING or self.closing:
            return
        now = self._loop.time()
        if step is Step.RESUME:
            logger.info("%s/%s: no more backoff", self.topic, self.channel)
            self.sharing.resume(now)
            self._schedule_share()
            self.emit(BackoffChanged(0, 0.0))
        else:
            level, pause = self.backoff.level, self.backoff.pause
            logger.warning("%s/%s: backing off for %.3f s, level %d", self.topic, self.channel, pause, level)
            self.sharing.pause(now)
            self._pause = self._loop.call_later(pause, self._pause_over)
            self.emit(BackoffChanged(level, pause))

    def _pause_over(self) -> None:
        self.backoff.pause_over()
        self.sharing.test(self._loop.time())
        self._schedule_share()

    # ---- messages

    def received(self, subscription: Subscription, messages: list[Message]) -> None:
        self.received_count += len(messages)
        in_flight = self.in_flight() if len(self.subscriptions) > 1 else subscription.lane.in_flight
        if in_flight > self.most_in_flight:
            self.most_in_flight = in_flight
        self.sharing.message(subscription.lane, messages[0].stamp)
        if self.sharing.waiting:
            self._schedule_share()
        if self.closing and not self.takers:
            for message in messages:
                message.answered = True
                subscription.lane.in_flight -= 1
                subscription.give_back(message.id)
            subscription.close_if_drained()
            return
        limit = self.config.max_attempts
        if limit and (spent := [message for message in messages if message.attempts > limit]):
            messages = [message for message in messages if message.attempts <= limit]
            for message in spent:
                self._give_up(message)
        self.ready.extend(messages)
        if self._waiters:
            self._wake_up(len(messages))

    def _wake_up(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def take_ready(self) -> Message | None:
        """The next message, if there is one right now."""
        return self.ready.popleft() if self.ready else None

    async def take(self, worker: bool = False) -> Message | None:
        """The next message, as soon as there is one; None when there will be none."""
        while True:
            if self.closing and not worker:
                return None
            message = self.take_ready()
            if message is not None:
                return message
            if self.ended:
                return None
            await self.wait()

    async def wait(self) -> None:
        """Until something has come, or the end."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_up(1)  # it was for somebody
            else:
                self._waiters.remove(waiter)
            raise

    def put_back(self, messages: Sequence[Message]) -> None:
        """Taken and not used: the next to be taken. Those of a connection that is gone are dropped."""
        for message in reversed(messages):
            if message.source.lost:
                message.answered = True
            elif self.closing:
                message.requeue(0.0, backoff=False)
            else:
                self.ready.appendleft(message)
        self._wake_up(len(messages))

    # ---- giving up

    def _give_up(self, message: Message) -> None:
        logger.warning("%s: giving up %r", message.nsqd_address, message)
        if self._on_give_up is None:
            self._given_up(message)
        else:
            task = self._loop.create_task(self._call_give_up(self._on_give_up, message))
            self._hooks.add(task)
            task.add_done_callback(self._hooks.discard)

    async def _call_give_up(self, hook: GiveUpHook, message: Message) -> None:
        try:
            await hook(message)
        except asyncio.CancelledError:
            if not message.answered:
                message.requeue(0.0, backoff=False)
            raise
        except Exception:
            logger.exception("on_give_up failed: %r is requeued", message)
            if not message.answered:
                message.requeue()
        else:
            self._given_up(message)

    def _given_up(self, message: Message) -> None:
        self.gave_up += 1
        self.emit(GaveUp(message.id, message.attempts, message.nsqd_address))
        if not message.answered:
            message.finish()

    # ---- the end

    def start_closing(self) -> None:
        """CLS everywhere. What nobody will take is given back; workers take the rest."""
        self.closing = True
        for timer in (self._tick, self._wake, self._pause):
            if timer is not None:
                timer.cancel()
        self.sharing.waiting = False
        for subscription in list(self.subscriptions.values()):
            subscription.start_drain()
        if not self.takers:
            self.give_back_queue()
        self._wake_up(len(self._waiters))

    def give_back_queue(self) -> None:
        while self.ready:
            message = self.ready.popleft()
            message.answered = True
            subscription = message.source
            if not subscription.lost:
                subscription.lane.in_flight -= 1
                subscription.give_back(message.id)
                subscription.close_if_drained()

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        self._wake_up(len(self._waiters))
        for task in self._hooks:
            task.cancel()
