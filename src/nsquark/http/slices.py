"""Long work on the event loop, a slice at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

SLICE = 0.001  # how long before others get a turn

_T = TypeVar("_T")


async def in_slices(pieces: Iterable[_T]) -> list[_T]:
    """All of them, with turns for everybody else in between: a large node has much to tell."""
    done: list[_T] = []
    until = time.perf_counter() + SLICE
    for piece in pieces:
        done.append(piece)
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE
    return done
