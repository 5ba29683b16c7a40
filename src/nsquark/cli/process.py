"""The process of a daemon: the event loop, the signals, the descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from . import logs

_T = TypeVar("_T")


def allow_many_files() -> None:
    """Every connection needs a descriptor: take as many as the system gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fill_standard_files() -> None:
    """Open closed standard files on nothing. uvloop aborts when it closes a socket of such a number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is `fd`


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, on uvloop where there is one."""
    _fill_standard_files()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def leave(status: int) -> NoReturn:
    """End the process here and now. All that is to be stored is stored: nothing else has a say in it."""
    logs.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):
            stream.flush()
    os._exit(status)


def stop_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


class StopSignals:
    """SIGINT and SIGTERM: the first asks for a graceful end, the second for the end at once.

    A third one ends the process there and then: whatever the end still waits for, it does not come.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        if not self.first.is_set():
            self.first.set()
        elif not self.second.is_set():
            self.second.set()
        else:
            os._exit(1)


def outlive_hangups() -> None:
    """SIGHUP, also of a terminal that is closed, does not end a daemon. `on_hangup` gives it a meaning."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def on_hangup(reload: Callable[[], None]) -> None:
    """SIGHUP no longer ends the process: it calls `reload`."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def collect_seldom() -> None:
    """Hardly anything in a daemon is garbage that counting references does not find; look for it seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
