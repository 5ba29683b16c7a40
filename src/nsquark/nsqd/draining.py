"""The graceful end of nsqd's work: no more deliveries, and time for consumers to answer what they have.

Publishes are still taken meanwhile: they are in the log, and delivered after the next start. What consumers
have not answered when the time is up is delivered again after the next start, too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)

LOOK = 0.02  # seconds between two looks at what is in flight


async def drain(broker: Broker, timeout: float, hurry: asyncio.Event) -> int:
    """Wait until nothing is in flight, for `timeout` seconds at most and until `hurry` is set.

    Returns how many messages are in flight then.
    """
    for connection in list(broker.connections):
        connection.session.start_closing()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    told = False
    while left := in_flight(broker):
        remaining = deadline - loop.time()
        if remaining <= 0 or hurry.is_set():
            logger.warning("NSQ: %d messages were not answered, and will be delivered again", left)
            break
        if not told:
            told = True
            logger.info("NSQ: consumers have %g s to answer %d messages", timeout, left)
        try:
            async with asyncio.timeout(min(LOOK, remaining)):
                await hurry.wait()
        except TimeoutError:
            pass
    return left


def in_flight(broker: Broker) -> int:
    """How many messages connected consumers have and have not answered."""
    consumers = [connection.session.consumer for connection in broker.connections]
    return sum(consumer.in_flight_count for consumer in consumers if consumer is not None)
