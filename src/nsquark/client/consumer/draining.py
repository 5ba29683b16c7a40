"""Closing a consumer: wait for the answers of what was taken, requeue the rest, disconnect."""

from __future__ import annotations

import asyncio
from typing import Any

from ..events import Drained
from .connector import Connector
from .subscription import Subscription
from .subscriptions import Subscriptions


async def drain(
    subscriptions: Subscriptions, connector: Connector, timeout: float, hurry: asyncio.Event
) -> Drained:
    """Close all connections once everything is answered, `timeout` seconds are over, or `hurry` is set."""
    counters = subscriptions.counters
    finished, requeued = counters.finished, counters.requeued
    subscriptions.start_closing()
    await connector.stop()
    remaining = list(subscriptions)
    try:
        await _wait_for_answers(remaining, timeout, hurry)
    finally:
        await _cancel(subscriptions.queue.workers)
        subscriptions.end()
        for subscription in remaining:
            subscription.close()
        await _disconnected(remaining, subscriptions.config.write_timeout)
    abandoned = sum(subscription.abandoned for subscription in remaining)
    return Drained(counters.finished - finished, counters.requeued - requeued, abandoned)


async def _wait_for_answers(subscriptions: list[Subscription], timeout: float, hurry: asyncio.Event) -> None:
    drained = asyncio.create_task(_all_gone(subscriptions))
    hurried = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait((drained, hurried), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel({drained, hurried})


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    others = tasks - {asyncio.current_task()}  # a handler may be the caller of `close`
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _all_gone(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        await subscription.gone.wait()


async def _disconnected(subscriptions: list[Subscription], timeout: float) -> None:
    """Let the last answers leave. A connection whose nsqd does not read them in time is aborted."""
    try:
        async with asyncio.timeout(timeout):
            await _all_gone(subscriptions)
    except TimeoutError:
        for subscription in subscriptions:
            subscription.connection.abort()
        await _all_gone(subscriptions)
