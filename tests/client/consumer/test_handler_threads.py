"""Plain handlers in threads: what they return, raise, and what is not called any more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from nsquark.client.consumer.handler_threads import HandlerThreads
from nsquark.client.message import Message
from tests.daemon import PATIENCE, until


def message(name: str) -> Message:
    """The threads hand on what they get, and look at none of it."""
    return cast(Message, name)


async def test_outcomes_come_back_to_the_loop() -> None:
    def handle(given: Any) -> None:
        if given != "good":
            raise {"bad": ZeroDivisionError, "stop": StopIteration, "exit": SystemExit}[given]

    threads = HandlerThreads(handle, 2)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await threads(message("good")) is None
            with pytest.raises(ZeroDivisionError):
                await threads(message("bad"))
            for name in ("stop", "exit"):
                with pytest.raises(RuntimeError, match="the handler raised"):
                    await threads(message(name))
            assert await threads(message("good")) is None  # no thread has ended
    finally:
        threads.stop()


async def test_a_call_that_was_cancelled_before_its_turn_is_not_made() -> None:
    go = threading.Event()
    called: list[object] = []

    def handle(given: object) -> None:
        called.append(given)
        assert go.wait(PATIENCE)

    threads = HandlerThreads(handle, 1)
    first, second, third = (threads(message(name)) for name in ("one", "two", "three"))
    second.cancel()
    go.set()
    async with asyncio.timeout(PATIENCE):
        await first
        await third
    assert called == ["one", "three"]
    threads.stop()
    await until(lambda: not [each for each in threading.enumerate() if each.name == "nsquark handler 0"])
