"""The stacks of all tasks and threads, as text."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .profile import Place
from .sampler import stack_of


def task_lines() -> Iterator[str]:
    """Every task with where it waits, the innermost last."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    yield f"tasks: {len(tasks)}\n"
    for task in tasks:
        yield f"\n{task.get_name()}\n"
        yield from map(_line, _awaited(task.get_coro()))


def thread_lines() -> Iterator[str]:
    """Every thread with what it runs, the innermost last."""
    frames = sys._current_frames()
    threads = threading.enumerate()
    yield f"\nthreads: {len(threads)}\n"
    for thread in threads:
        yield f"\n{thread.name} (id {thread.native_id}{', daemon' if thread.daemon else ''})\n"
        yield from map(_line, reversed(stack_of(frames.get(thread.ident or 0))))


def _awaited(coroutine: Any) -> Iterator[Place]:
    """A coroutine, what it awaits, what that awaits, as far as they are Python's."""
    for _ in range(100):
        if coroutine is None:
            return
        frame: FrameType | None = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield stack_of(frame)[0]
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def _line(place: Place) -> str:
    return f"    {place.file}:{place.line} {place.function}\n"
