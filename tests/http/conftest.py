"""A server on port 0 and raw clients, under both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from nsquark.http import HttpServer, Limits, Router
from tests.http.served import Served

# Times that a test can wait for.
QUICK = Limits(
    request_timeout=0.2, idle_timeout=0.3, write_timeout=0.3, linger=0.2, tick=0.05, min_rate=1 << 20
)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., object]]:
    """`await serve(router, limits)` is a server that is gone after the test."""
    all_served: list[Served] = []

    async def start(router: Router, limits: Limits | None = None) -> Served:
        served = Served(HttpServer(router, limits))
        await served.listen()
        all_served.append(served)
        return served

    yield start
    for served in all_served:
        await served.stop()


@pytest.fixture
def quick() -> Limits:
    return QUICK
