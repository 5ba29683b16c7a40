"""A consumer's subscription at one nsqd: the messages in flight there, and their answers.

User code may call `finish`, `requeue`, `touch` and `settle` from any thread. Commands are sent on the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nsquark.errors import (
    ConnectFailed,
    ConnectionLost,
    FinFailed,
    ProtocolError,
    ReqFailed,
    TouchFailed,
    UsageError,
)

from ..backoff import Signal
from ..config import milliseconds
from ..connection import NsqdConnection, connect
from ..events import AnswerExpired
from ..message import Discard, Message, Requeue
from .rdy import RdyShare

if TYPE_CHECKING:
    from .subscriptions import Subscriptions

logger = logging.getLogger(__name__)


class Subscription:
    """One SUB. `subscribe` connects and sends it."""

    def __init__(self, subscriptions: Subscriptions, address: str) -> None:
        self.address = address
        self.topic = subscriptions.topic
        self.channel = subscriptions.channel
        self.lost = False  # no answer reaches nsqd any more
        self.draining = False  # CLS was sent: close when no message is in flight
        self.error: Exception | None = None  # why it was lost
        self.gone = asyncio.Event()
        self.abandoned = 0  # messages that user code had taken and `close` has requeued
        self.in_flight: set[bytes] = set()  # ids
        self.manual: set[bytes] = set()  # ids of messages whose handlers have disabled the automatic answer
        self.loop = asyncio.get_running_loop()
        self.share = RdyShare(0, self.loop.time())
        self.connection: NsqdConnection[Message]
        self._msg_timeout = 60.0
        self._close_waited = False  # nsqd has answered CLS
        self._touched: dict[bytes, float] = {}  # id: when
        self._expired: set[bytes] = set()  # ids that nsqd has refused a TOUCH of
        self._forgotten: set[bytes] = set()  # ids of messages that user code let go unanswered
        self._subscriptions = subscriptions
        self._config = subscriptions.config
        self._counters = subscriptions.counters
        self._flow = subscriptions.flow
        self._thread = get_ident()

    async def subscribe(self) -> None:
        """Connect and SUB. Raises ConnectFailed or the ProtocolError by which nsqd refused."""
        config = self._config
        self.connection = await connect(self.address, config, Message, self)
        try:
            async with asyncio.timeout(config.read_timeout):
                await self.connection.ask(f"SUB {self.topic} {self.channel}\n".encode())
        except TimeoutError:
            self.connection.abort()
            raise ConnectFailed(f"{self.address}: SUB was not answered") from None
        except ProtocolError:
            self.connection.abort()
            raise
        except ConnectionLost as error:
            raise ConnectFailed(f"{self.address}: {error}") from error
        except BaseException:
            self.connection.abort()
            raise
        granted = self.connection.identify_response
        self._msg_timeout = granted.msg_timeout / 1000
        self.share = RdyShare(granted.max_rdy_count, self.loop.time())
        max_in_flight = self._flow.sharing.max_in_flight
        if granted.max_rdy_count < max_in_flight:
            logger.warning(
                "%s takes RDY up to %d, max_in_flight is %d",
                self.address,
                granted.max_rdy_count,
                max_in_flight,
            )

    # ---- the calls of the connection

    def messages_received(self, messages: list[Message]) -> None:
        self.share.in_flight += len(messages)
        ids = [message.id for message in messages]
        self.in_flight.update(ids)
        if self._forgotten:
            # nsqd delivers a forgotten message again once its time is up: it counts once.
            again = self._forgotten.intersection(ids)
            self._forgotten -= again
            self.share.in_flight -= len(again)
        self._subscriptions.received(self, messages)

    def answer_failed(self, error: ProtocolError) -> None:
        words = error.description.split(b" ", 2)
        counters = self._counters
        if isinstance(error, FinFailed):
            counters.finished -= 1
        elif isinstance(error, ReqFailed):
            counters.requeued -= 1
        elif isinstance(error, TouchFailed):
            counters.touched -= 1
            if len(words) > 1:
                self._expired.add(words[1])
        logger.warning(
            "%s: %s: probably it took longer than msg_timeout (%g s), and nsqd delivers the message again;"
            " see Config.msg_timeout and touch_every",
            self.address,
            error,
            self._msg_timeout,
        )
        counters.expired_answers += 1
        self._subscriptions.emit(AnswerExpired(self.address, error))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.error = error
        self.in_flight.clear()
        self._subscriptions.lost(self)
        self.share.in_flight = 0
        self.gone.set()

    # ---- answers

    def finish(self, message: Message) -> bool:
        if message.answered:
            raise _answered_before(message)
        message.answered = True
        if get_ident() != self._thread:
            return self._on_loop(self._finish, message)
        return self._finish(message)

    def _finish(self, message: Message) -> bool:
        if self.lost:
            self._counters.expired_answers += 1
            return False
        flow = self._flow
        if flow.backoff.level:
            flow.signal(Signal.SUCCESS)  # its RDY goes before the FIN
        message_id = message.id
        self.share.in_flight -= 1
        self.in_flight.discard(message_id)
        self.connection.send_fin(message_id)
        self._counters.finished += 1
        in_time = self.loop.time() - message.stamp < self._msg_timeout
        if not in_time or self._touched or self._expired or self.draining or flow.sharing.waiting:
            in_time = not self.is_expired(message)
            self._answered(message_id)
        return in_time

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        if message.answered:
            raise _answered_before(message)
        config = self._config
        if delay is None or delay == -1:
            delay = min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)
        elif delay < 0:
            raise UsageError(f"a delay of {delay!r} s")
        message.answered = True
        if get_ident() != self._thread:
            return self._on_loop(self._requeue, message, delay, backoff)
        return self._requeue(message, delay, backoff)

    def _requeue(self, message: Message, delay: float, backoff: bool) -> bool:
        if self.lost:
            self._counters.expired_answers += 1
            return False
        self._flow.signal(Signal.FAILURE if backoff else Signal.NEUTRAL)
        self.share.in_flight -= 1
        self.give_back(message.id, delay)
        in_time = not self.is_expired(message)
        self._answered(message.id)
        return in_time

    def give_back(self, message_id: bytes, delay: float = 0.0) -> None:
        """Send REQ. The caller keeps the count of the messages in flight."""
        self.in_flight.discard(message_id)
        self.connection.send(b"REQ %b %d\n" % (message_id, milliseconds(delay)))
        self._counters.requeued += 1

    def touch(self, message: Message) -> bool:
        if message.answered:
            return False
        if get_ident() != self._thread:
            return self._on_loop(self._touch, message)
        return self._touch(message)

    def _touch(self, message: Message) -> bool:
        if self.lost or message.answered or self.is_expired(message):
            return False
        self._touched[message.id] = self.loop.time()
        self.connection.send(b"TOUCH %b\n" % message.id)
        self._counters.touched += 1
        return True

    def _on_loop(self, call: Any, *arguments: Any) -> bool:
        if self.lost:
            return False
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _answered(self, message_id: bytes) -> None:
        """Forget the message, distribute the room that its answer has made, and close after the last one."""
        self._touched.pop(message_id, None)
        self._expired.discard(message_id)
        if self._flow.sharing.waiting:
            self._flow.distribute()
        self.close_if_drained()

    def settle(self, message: Message, error: BaseException | None) -> bool:
        """Answer a message automatically, as `with message` and `run` do. True if the error ends here."""
        if not message.answered and not self._is_manual(message):
            if error is None:
                message.finish()
            elif isinstance(error, Discard):
                self._counters.discarded += 1
                message.finish()
            elif isinstance(error, Requeue):
                message.requeue(error.delay, backoff=error.backoff)
            elif isinstance(error, Exception):
                message.requeue()
            else:  # cancelled or interrupted, which is no failure of the handler
                message.requeue(0.0, backoff=False)
        return isinstance(error, Discard | Requeue)

    def _is_manual(self, message: Message) -> bool:
        if message.id in self.manual:
            self.manual.discard(message.id)
            return True
        return False

    def forgotten(self, message: Message) -> bool:
        """A message was garbage collected unanswered, in any thread. True if that deserves a warning."""
        if self.lost or message.id not in self.in_flight:
            return False
        try:
            self.loop.call_soon_threadsafe(self._forget, message.id, self.time_left(message))
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _forget(self, message_id: bytes, time_left: float) -> None:
        """Do not wait for a message that no code can answer, and stop counting it when its time is up."""
        self._forgotten.add(message_id)
        self.close_if_drained()
        self.loop.call_later(max(0.0, time_left), self._release, message_id)

    def _release(self, message_id: bytes) -> None:
        if not self.lost and message_id in self._forgotten:
            self._forgotten.discard(message_id)
            self.in_flight.discard(message_id)
            self.share.in_flight -= 1
            self._answered(message_id)

    # ---- time

    def time_left(self, message: Message, hard: bool = False) -> float:
        granted = self.connection.identify_response
        end = message.stamp + granted.max_msg_timeout / 1000
        if not hard:
            end = min(end, self._touched.get(message.id, message.stamp) + self._msg_timeout)
        return end - self.loop.time()

    def is_expired(self, message: Message) -> bool:
        return self.lost or message.id in self._expired or self.time_left(message) <= 0

    # ---- the end

    def start_drain(self) -> None:
        """Send CLS, so that nsqd sends no more messages. Close when all messages are answered."""
        if not self.draining and not self.lost:
            self.draining = True
            # A connection that dies first brings no CLOSE_WAIT; `connection_lost` ends the drain then.
            self.connection.ask(b"CLS\n").add_done_callback(self._close_wait)

    def _close_wait(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._close_waited = True
            self.close_if_drained()

    def close_if_drained(self) -> None:
        if self.draining and self._close_waited and not self.lost and not self.in_flight - self._forgotten:
            self.close()

    def close(self) -> None:
        """Requeue the unanswered messages, and close."""
        if self.lost:
            return
        for message_id in list(self.in_flight):
            self.give_back(message_id)
            self.abandoned += 1
        self.lost = True
        self.connection.close()


def _answered_before(message: Message) -> UsageError:
    return UsageError(f"{message!r} was answered before")
