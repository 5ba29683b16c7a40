"""What every daemon's process does alike: the event loop, the signals, the descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def allow_many_files() -> None:
    """Every connection needs a descriptor: take as many as the system gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def stop_signal() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


def on_hangup(reload: Callable[[], None]) -> None:
    """SIGHUP no longer ends the process: it calls `reload`."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def collect_seldom() -> None:
    """Hardly anything in a daemon is garbage that counting references does not find; look for it seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
