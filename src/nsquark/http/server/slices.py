"""Long work on the event loop, a slice at a time: a large node has much to tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE = 0.001  # how long before others get a turn

_T = TypeVar("_T")


async def slices(pieces: Iterable[_T]) -> AsyncIterator[list[_T]]:
    """All of them, in lists. Other work of the event loop has its turn between two lists."""
    done: list[_T] = []
    until = time.perf_counter() + SLICE
    for piece in pieces:
        done.append(piece)
        if time.perf_counter() > until:
            yield done
            done = []
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE
    yield done


async def joined(pieces: Iterable[str]) -> bytes:
    """The whole text in UTF-8; a lone surrogate, which that has not, as an escape."""
    parts = ["".join(each).encode("utf-8", "backslashreplace") async for each in slices(pieces)]
    return b"".join(parts)
