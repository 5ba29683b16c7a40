"""What the tests of consumers share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nsquark.client import Config, Consumer
from nsquark.client.config import Reconnect
from tests.daemon import PATIENCE, Nsqd

QUICK = Reconnect(first=0.01, cap=0.05)


def config(max_in_flight: int = 10, **more: Any) -> Config:
    more = {"backoff": None, "reconnect": QUICK, "default_requeue_delay": 0.0, **more}
    return Config(max_in_flight=max_in_flight, **more)


async def channel(nsqd: Nsqd) -> dict[str, Any]:
    """What nsqd says of channel ch of topic t."""
    _, answer = await nsqd.http("GET", "/stats?format=json&topic=t&channel=ch")
    found: dict[str, Any] = json.loads(answer)["topics"][0]["channels"][0]
    return found


async def finished(nsqd: Nsqd, count: int) -> bool:
    stats = await channel(nsqd)
    return bool(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"] == 0 and count >= 0)


async def depth_is(nsqd: Nsqd, depth: int) -> bool:
    stats = await channel(nsqd)
    return bool(stats["depth"] == depth and stats["in_flight_count"] == 0)


async def run(consumer: Consumer, handler: Any, done: asyncio.Event, **options: Any) -> None:
    """Run the handler until the test says that it has seen enough."""
    running = asyncio.create_task(consumer.run(handler, **options))
    async with asyncio.timeout(PATIENCE):
        await done.wait()
        await consumer.close()
        await running
