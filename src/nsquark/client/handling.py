"""A worker of `Consumer.run`: takes messages, calls the handler, answers by how that ended."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from nsquark.errors import UsageError

from .engine import Engine
from .message import Discard, Message, Requeue

logger = logging.getLogger(__name__)


class Handling:
    def __init__(
        self,
        engine: Engine,
        handler: Callable[[Message], Awaitable[object] | object],
        timeout: float | None,
        touch_every: float | None,
    ) -> None:
        if touch_every is not None and touch_every <= 0:
            raise UsageError(f"touch_every {touch_every!r}")
        self._engine = engine
        self._handler = handler
        self._timeout = timeout
        self._touch_every = touch_every
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Message, asyncio.TimerHandle | None] = {}

    async def work(self) -> None:
        """Until there are no more messages. A handler that fails ends nothing but its message."""
        engine, handler = self._engine, self._handler
        plain = self._timeout is None and self._touch_every is None
        while True:
            message = engine.take_ready()
            if message is None:
                message = await engine.take(worker=True)
                if message is None:
                    return
            try:
                if plain:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        await result
                else:
                    await self._watched(message)
            except asyncio.CancelledError as error:
                # Cancelled from outside: pass it on. The handler's own doing: its failure.
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

    async def _watched(self, message: Message) -> None:
        """Call the handler, keep nsqd informed meanwhile, and not for ever."""
        touching = self._touch_every
        timer = self._loop.call_later(touching, self._touch, message) if touching is not None else None
        self._timers[message] = timer
        try:
            async with asyncio.timeout(self._timeout):
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
        finally:
            timer = self._timers.pop(message)
            if timer is not None:
                timer.cancel()

    def _touch(self, message: Message) -> None:
        if message.touch():
            assert self._touch_every is not None
            self._timers[message] = self._loop.call_later(self._touch_every, self._touch, message)
