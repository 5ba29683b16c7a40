"""Long answers in pieces, so that nobody waits for somebody else's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

# How long one answer may be put together before others get a turn.
SLICE = 0.001


async def in_slices(pieces: Iterator[str]) -> bytes:
    """All pieces together, with turns for everybody else in between."""
    packed: list[bytes] = []
    until = time.perf_counter() + SLICE
    for piece in pieces:
        packed.append(piece.encode("utf-8", "backslashreplace"))
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE
    return b"".join(packed)
