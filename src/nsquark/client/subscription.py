"""A consumer's connection to one nsqd: what is in flight on it, and the answers.

All methods without `async` may be called from any thread; what they send leaves on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nsquark.errors import ConnectFailed, ConnectionLost, ProtocolError, TouchFailed, UsageError

from .backoff import Signal
from .config import milliseconds
from .connect import connect
from .connection import NsqdConnection
from .events import AnswerExpired
from .message import Discard, Message, Requeue
from .rdy import Lane

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)


class Subscription:
    """Made by `subscribe`; until then it takes whatever comes and keeps it."""

    def __init__(self, engine: Engine, address: str) -> None:
        self.address = address
        self.topic = engine.topic
        self.channel = engine.channel
        self.lost = False  # no answer gets through any more
        self.draining = False  # CLS was sent: close when nothing is in flight
        self.error: Exception | None = None  # why it was lost
        self.gone = asyncio.Event()
        self._msg_timeout = 60.0
        self.abandoned = 0  # given back at the end, from the hands of whoever had taken them
        self._closed_wait = False  # nsqd has answered CLS
        self.ids: set[bytes] = set()  # of what is in flight
        self.manual: set[bytes] = set()  # of messages whose handlers will not answer
        self._touched: dict[bytes, float] = {}
        self._expired: set[bytes] = set()
        self._forgotten: set[bytes] = set()
        self._engine = engine
        self._thread = get_ident()
        self.loop = asyncio.get_running_loop()
        self.lane = Lane(0, self.loop.time())
        self.connection: NsqdConnection[Message]

    async def subscribe(self) -> None:
        """Connect and SUB. Raises ConnectFailed or the ProtocolError by which nsqd refused."""
        config = self._engine.config
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
        self.lane = Lane(granted.max_rdy_count, self.loop.time())
        if granted.max_rdy_count < self._engine.sharing.max_in_flight:
            logger.warning(
                "%s takes RDY up to %d, max_in_flight is %d",
                self.address,
                granted.max_rdy_count,
                self._engine.sharing.max_in_flight,
            )

    # ---- the connection's side

    def messages_received(self, messages: list[Message]) -> None:
        self.lane.in_flight += len(messages)
        ids = [message.id for message in messages]
        self.ids.update(ids)
        if self._forgotten:
            again = self._forgotten.intersection(ids)  # their time was up, so this is their only delivery
            self._forgotten -= again
            self.lane.in_flight -= len(again)
        self._engine.received(self, messages)

    def answer_failed(self, error: ProtocolError) -> None:
        words = error.description.split(b" ", 2)
        if isinstance(error, TouchFailed) and len(words) > 1:
            self._expired.add(words[1])
        logger.warning("%s: %s", self.address, error)
        self._engine.expired_answers += 1
        self._engine.emit(AnswerExpired(self.address, error))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.error = error
        self.ids.clear()
        self._engine.lost(self)
        self.lane.in_flight = 0
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
        engine = self._engine
        if self.lost:
            engine.expired_answers += 1
            return False
        if engine.backoff.level:
            engine.signal(Signal.SUCCESS)  # its RDY goes before the FIN
        message_id = message.id
        self.lane.in_flight -= 1
        self.ids.discard(message_id)
        self.connection.send_fin(message_id)
        engine.finished += 1
        in_time = self.loop.time() - message.stamp < self._msg_timeout
        if not in_time or self._touched or self._expired or self.draining or engine.sharing.waiting:
            in_time = not self.is_expired(message)
            self._answered(message_id)
        return in_time

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        if message.answered:
            raise _answered_before(message)
        config = self._engine.config
        if delay is None or delay == -1:
            delay = min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)
        elif delay < 0:
            raise UsageError(f"a delay of {delay!r} s")
        message.answered = True
        if get_ident() != self._thread:
            return self._on_loop(self._requeue, message, delay, backoff)
        return self._requeue(message, delay, backoff)

    def _requeue(self, message: Message, delay: float, backoff: bool) -> bool:
        engine = self._engine
        if self.lost:
            engine.expired_answers += 1
            return False
        engine.signal(Signal.FAILURE if backoff else Signal.NEUTRAL)
        self.lane.in_flight -= 1
        self.give_back(message.id, delay)
        in_time = not self.is_expired(message)
        self._answered(message.id)
        return in_time

    def give_back(self, message_id: bytes, delay: float = 0.0) -> None:
        """REQ, and nothing else."""
        self.ids.discard(message_id)
        self.connection.send(b"REQ %b %d\n" % (message_id, milliseconds(delay)))
        self._engine.requeued += 1

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
        self._engine.touched += 1
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
        """What else an answer may bring about."""
        self._touched.pop(message_id, None)
        self._expired.discard(message_id)
        if self._engine.sharing.waiting:
            self._engine.share()
        self.close_if_drained()

    def settle(self, message: Message, error: BaseException | None) -> bool:
        """The automatic answer of `with message`; whether the error ends here."""
        if not message.answered and not self._is_manual(message):
            if error is None:
                message.finish()
            elif isinstance(error, Discard):
                self._engine.discarded += 1
                message.finish()
            elif isinstance(error, Requeue):
                message.requeue(error.delay, backoff=error.backoff)
            elif isinstance(error, Exception):
                message.requeue()
            else:  # cancelled, interrupted: nobody's fault
                message.requeue(0.0, backoff=False)
        return isinstance(error, Discard | Requeue)

    def _is_manual(self, message: Message) -> bool:
        if message.id in self.manual:
            self.manual.discard(message.id)
            return True
        return False

    def forgotten(self, message: Message) -> bool:
        """A message was collected unanswered, in whatever thread. Whether that is worth a warning."""
        if self.lost or message.id not in self.ids:
            return False
        try:
            self.loop.call_soon_threadsafe(self._forget, message.id, self.time_left(message))
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _forget(self, message_id: bytes, time_left: float) -> None:
        """Nobody will answer this one: do not wait for it, and when its time is up do not count it."""
        self._forgotten.add(message_id)
        self.close_if_drained()
        self.loop.call_later(max(0.0, time_left), self._release, message_id)

    def _release(self, message_id: bytes) -> None:
        if not self.lost and message_id in self._forgotten:
            self._forgotten.discard(message_id)
            self.ids.discard(message_id)
            self.lane.in_flight -= 1
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
        """CLS: nothing more comes; close when everything is answered."""
        if not self.draining and not self.lost:
            self.draining = True
            # CLOSE_WAIT may never come if the connection dies first; nobody depends on it
            self.connection.ask(b"CLS\n").add_done_callback(self._close_wait)

    def _close_wait(self, answer: asyncio.Future[bytes]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._closed_wait = True
            self.close_if_drained()

    def close_if_drained(self) -> None:
        if self.draining and self._closed_wait and not self.lost and not self.ids - self._forgotten:
            self.close()

    def close(self) -> None:
        """Give back what is unanswered, and close."""
        if self.lost:
            return
        for message_id in list(self.ids):
            self.give_back(message_id)
            self.abandoned += 1
        self.lost = True
        self.connection.close()


def _answered_before(message: Message) -> UsageError:
    return UsageError(f"{message!r} was answered before")
