"""How a command runs and ends: one event loop, one line for every failure, a second for Ctrl-C.

| it ends | exit status |
|---|---|
| well, or because the reader of its output has gone | 0 |
| with a failure, told in one line on stderr | 1 |
| because it was called wrongly | 2 |
| by SIGINT (Ctrl-C) or SIGTERM, told in one line on stderr | 130, 143 |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from nsquark.cli import process

from .failures import say

_T = TypeVar("_T")

# How long a command may take to close its connections after Ctrl-C.
GRACE: Final = 0.7


def run(work: Coroutine[Any, Any, _T], done: Callable[[], str] | None = None) -> _T:
    """The result of `work`. SIGINT and SIGTERM cancel it; then the process says what is `done`, and ends.

    `work` has `GRACE` seconds for its `finally` clauses.
    """
    # What the client library logs is for programs; a command says itself what a person is to know.
    logging.getLogger("nsquark").addHandler(logging.NullHandler())
    try:
        return process.run(_until_a_signal(work, done))
    finally:
        # The event loop has had them; a question that is asked after it ends by Ctrl-C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def _until_a_signal(work: Coroutine[Any, Any, _T], done: Callable[[], str] | None) -> _T:
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[int] = loop.create_future()

    def on_signal(number: int) -> None:
        if signalled.done():
            os._exit(128 + number)  # a second Ctrl-C does not even wait for the grace
        signalled.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    task = loop.create_task(work)
    await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait((task,), timeout=GRACE)
    say(done() if done is not None else "interrupted")
    # Not by way of the interpreter's own end: that waits for threads, and one of them may look up a name or
    # read a terminal for as long as it likes.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(128 + signalled.result())
