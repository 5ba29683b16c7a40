"""`Consumer.run`: worker tasks that take messages, call the handler, and answer by its outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from nsquark.errors import UsageError

from ..message import Discard, Message, Requeue
from .subscriptions import Subscriptions

logger = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[object] | object]


class HandlerRun:
    """One call of `Consumer.run`: a handler, its options, and its workers."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        handler: Handler,
        timeout: float | None,
        touch_every: float | None,
    ) -> None:
        if touch_every is not None and touch_every <= 0:
            raise UsageError(f"touch_every {touch_every!r}")
        self._subscriptions = subscriptions
        self._queue = subscriptions.queue
        self._handler = handler
        self._timeout = timeout
        self._touch_every = touch_every
        self._loop = asyncio.get_running_loop()
        self._touch_timers: dict[Message, asyncio.TimerHandle | None] = {}

    async def run(self, concurrency: int) -> None:
        """Return when the consumer is closed."""
        if concurrency < 1:
            raise UsageError(f"a concurrency of {concurrency!r}")
        queue = self._queue
        workers = [asyncio.create_task(self._work(), name=f"worker {n}") for n in range(concurrency)]
        queue.workers.update(workers)
        self._subscriptions.flow.make_room(len(queue.workers))
        try:
            await asyncio.wait(workers)
            for worker in workers:
                if not worker.cancelled() and worker.exception() is not None:
                    raise worker.exception()  # type: ignore[misc]
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            queue.workers.difference_update(workers)
            if queue.closing and not queue.workers:
                self._subscriptions.give_back_queue()

    async def _work(self) -> None:
        """Handle messages until there are no more. A handler that fails ends its message, not the worker."""
        queue, handler = self._queue, self._handler
        plain = self._timeout is None and self._touch_every is None
        while True:
            message = queue.take_ready()
            if message is None:
                message = await queue.take(worker=True)
                if message is None:
                    return
            try:
                if plain:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result
                else:
                    await self._call_with_limits(message)
            except asyncio.CancelledError as error:
                # `close` or the caller of `run` cancels the worker. Otherwise the handler has cancelled
                # itself, which is a failure of the handler.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    message.source.settle(message, error)
                    raise
                logger.warning("the handler of %r cancelled itself", message)
                message.source.settle(message, TimeoutError())
            except Exception as error:
                if not isinstance(error, Discard | Requeue):
                    logger.exception("the handler failed on %r", message)
                message.source.settle(message, error)
            else:
                if not message.answered:
                    message.source.settle(message, None)

    async def _call_with_limits(self, message: Message) -> None:
        """Call the handler, send TOUCH meanwhile, and cancel it at its timeout."""
        touching = self._touch_every
        timer = self._loop.call_later(touching, self._touch, message) if touching is not None else None
        self._touch_timers[message] = timer
        try:
            async with asyncio.timeout(self._timeout):
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
        finally:
            timer = self._touch_timers.pop(message)
            if timer is not None:
                timer.cancel()

    def _touch(self, message: Message) -> None:
        if message.touch():
            assert self._touch_every is not None
            self._touch_timers[message] = self._loop.call_later(self._touch_every, self._touch, message)
