"""One nsqlookupd, from being configured to being taken off the list: connected, or soon again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from nsquark.net.addresses import split_address

from .lookup_connection import LookupConnection

logger = logging.getLogger(__name__)

CONNECT_WITHIN = 1.0
# Between attempts, doubled each time. One that is down is tried every second, so that it has us back at once
# when it comes; one that takes the call and then fails gets more and more rest.
FIRST_DELAY = 0.1
LONGEST_DELAY = 1.0
LONGEST_REST = 15.0
STEADY = 5.0  # a connection that lasted so long was a good one, and the next attempt is the first again
SAY_AGAIN = 60.0  # how often the same trouble is logged


class LookupPeer:
    def __init__(self, address: str, connect: Callable[[str], LookupConnection]) -> None:
        self.address = address
        self.connection: LookupConnection | None = None
        self.settled = asyncio.Event()  # set once the lookupd has told its name, or could not be reached
        self._new_connection = connect
        self._delay = FIRST_DELAY
        self._said: tuple[str, float] = ("", 0.0)
        logger.info("LOOKUP(%s): adding peer", address)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def changed(self, topic: str, channel: str) -> None:
        if self.connection is not None:
            self.connection.changed(topic, channel)

    def close(self) -> None:
        self._task.cancel()
        self.settled.set()
        if self.connection is not None:
            self.connection.close()

    async def _run(self) -> None:
        while True:
            longest = await self._connect()
            await asyncio.sleep(
                self._delay * random.uniform(0.8, 1.2)
            )  # many nsqds may have lost the same one
            self._delay = min(self._delay * 2, longest)

    async def _connect(self) -> float:
        """Return when the connection has ended, or was none: how long the next pause may be."""
        loop = asyncio.get_running_loop()
        connection = self.connection = self._new_connection(self.address)
        started = loop.time()
        try:
            host, port = split_address(self.address)
            async with asyncio.timeout(CONNECT_WITHIN):
                await loop.create_connection(lambda: connection, host or "localhost", port)
        except (OSError, ValueError) as error:
            self._say(f"failed to connect - {str(error) or type(error).__name__}")
            self.settled.set()
            return LONGEST_DELAY
        await connection.identified.wait()
        self.settled.set()
        reason = await connection.ended
        if loop.time() - started >= STEADY:
            self._delay = FIRST_DELAY
            self._said = "", 0.0
        self._say(f"connection closed - {reason}")
        return LONGEST_REST

    def _say(self, trouble: str) -> None:
        said, when = self._said
        now = asyncio.get_running_loop().time()
        if trouble != said or now - when >= SAY_AGAIN:
            self._said = trouble, now
            logger.error("LOOKUPD(%s): %s", self.address, trouble)
