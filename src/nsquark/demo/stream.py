"""A small stream to look at: orders of a shop, as JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Final

from nsquark.client import Producer
from nsquark.errors import NsquarkError

TOPIC: Final = "demo"
_RATE: Final = 10.0
_GOODS: Final = {"apple": 0.4, "bread": 3.2, "cheese": 5.5, "grapes": 2.1, "milk": 1.3}


def order(number: int) -> bytes:
    item = random.choice(list(_GOODS))
    count = random.randint(1, 5)
    return json.dumps({"order": number, "item": item, "count": count, "sum": count * _GOODS[item]}).encode()


async def publish(nsqd: str, begun: asyncio.Event, rate: float = _RATE) -> None:
    """Until it is cancelled; an nsqd that is away is waited for. `begun`: there is a first message."""
    async with Producer(nsqd) as producer:
        for number in itertools.count():
            try:
                await producer.publish(TOPIC, order(number))
                begun.set()
            except (NsquarkError, OSError):
                await asyncio.sleep(1.0)
            await asyncio.sleep(1 / rate)
