"""A plain handler that may block, called in threads for an event loop that must not wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ..message import Message

PlainHandler = Callable[[Message], object]
_Call = tuple[Message, "asyncio.Future[object]"]


class HandlerThreads:
    """A handler for `Consumer.run` that calls a plain one in `count` threads.

    The threads are daemons: a handler that hangs does not keep the process from ending.
    """

    def __init__(self, handler: PlainHandler, count: int) -> None:
        self._handler = handler
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"nsquark handler {n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def __call__(self, message: Message) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls.put((message, future))
        return future

    def stop(self) -> None:
        """Let the threads end, each after the call that it is in."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            message, future = call
            error: Exception | None = None
            try:
                if not future.cancelled():
                    self._handler(message)
            except (StopIteration, StopAsyncIteration) as wrong:  # a future does not take these
                error = RuntimeError(f"the handler raised {wrong!r}")
            except Exception as raised:
                error = raised
            except BaseException as wrong:  # sys.exit() ends neither the thread nor the event loop
                error = RuntimeError(f"the handler raised {wrong!r}")
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_settle, future, error)
            del call, message, future  # an idle thread keeps no message alive


def _settle(future: asyncio.Future[object], error: Exception | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
