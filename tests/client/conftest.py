"""What the client's tests share: no task and no socket may be left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from nsquark.client import Producer
from tests.daemon import Nsqd, until


def sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


@pytest.fixture
async def tidy() -> AsyncIterator[None]:
    """At the end there are the tasks and the sockets of the beginning."""
    tasks, open_before = len(asyncio.all_tasks()), sockets()
    yield
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    await until(lambda: sockets() <= open_before)


@pytest.fixture
async def producer(nsqd: Nsqd) -> AsyncIterator[Producer]:
    async with Producer(nsqd.tcp_address) as producer:
        yield producer
