"""The messages of a consumer that were received and are not taken yet, and the tasks that wait for them.

`max_in_flight` bounds the queue. Everything happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ..message import Message
from .subscription import Subscription


class MessageQueue:
    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.workers: set[asyncio.Task[None]] = set()  # of `run`: they take messages even while closing
        self.closing = False  # only workers get messages
        self.ended = False  # no task gets a message
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()

    def put(self, messages: list[Message]) -> None:
        self.ready.extend(messages)
        if self._waiters:
            self._wake_up(len(messages))

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put messages that were taken and not used at the front. A lost connection's are dropped."""
        for message in reversed(messages):
            if message.source.lost:
                message.answered = True
            elif self.closing:
                message.requeue(0.0, backoff=False)
            else:
                self.ready.appendleft(message)
        self._wake_up(len(messages))

    def drop(self, subscription: Subscription) -> None:
        """Forget the messages of a connection that is gone: nsqd will deliver them again."""
        dropped = [message for message in self.ready if message.source is subscription]
        if dropped:
            for message in dropped:
                message.answered = True
            self.ready = deque(message for message in self.ready if message.source is not subscription)

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
        """Return when a message has come, or the queue has closed or ended."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_up(1)  # another task takes the message that woke this one
            elif waiter in self._waiters:  # not if messages have come since the task was cancelled
                self._waiters.remove(waiter)
            raise

    def _wake_up(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def close(self) -> None:
        """Hand out messages to workers only."""
        self.closing = True
        self._wake_up(len(self._waiters))

    def end(self) -> None:
        """Hand out nothing more."""
        self.ended = True
        self._wake_up(len(self._waiters))
