"""Giving up: messages that were delivered more than `max_attempts` times are finished without a handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..events import Event, GaveUp
from ..message import Message
from .counters import ConsumerCounters

logger = logging.getLogger(__name__)

GiveUpHook = Callable[[Message], Awaitable[None]]


class MaxAttempts:
    def __init__(
        self,
        limit: int,
        on_give_up: GiveUpHook | None,
        counters: ConsumerCounters,
        emit: Callable[[Event], None],
    ) -> None:
        """A `limit` of 0 is none. `on_give_up` gets a message before it is finished."""
        self._limit = limit
        self._on_give_up = on_give_up
        self._counters = counters
        self._emit = emit
        self._hooks: set[asyncio.Task[None]] = set()

    def remove_spent(self, messages: list[Message]) -> list[Message]:
        """Give up the messages that are over the limit, and return the others."""
        limit = self._limit
        if not limit or not (spent := [message for message in messages if message.attempts > limit]):
            return messages
        for message in spent:
            self._give_up(message)
        return [message for message in messages if message.attempts <= limit]

    def cancel_hooks(self) -> None:
        """Cancel the hooks that are under way; their messages are requeued."""
        for task in self._hooks:
            task.cancel()

    def _give_up(self, message: Message) -> None:
        logger.warning("%s: giving up %r", message.nsqd_address, message)
        if self._on_give_up is None:
            self._given_up(message)
        else:
            task = asyncio.create_task(self._call_hook(self._on_give_up, message))
            self._hooks.add(task)
            task.add_done_callback(self._hooks.discard)

    async def _call_hook(self, hook: GiveUpHook, message: Message) -> None:
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
        self._counters.gave_up += 1
        self._emit(GaveUp(message.id, message.attempts, message.nsqd_address))
        if not message.answered:
            message.finish()
