"""Sending: a request for each message, and its answer for the message.

A message is finished when its target has accepted it; in the mode `all`, when every target has. Anything else
requeues it, and the consumer backs off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import random

from nsquark.client import Consumer, Message, Requeue
from nsquark.errors import NsquarkError
from nsquark.http.client.pool import ClientPool

from ..forward.running import Counts
from ..forward.target_choice import MODES, TargetChoice
from ..forward.timing import StatusLines
from .target import Target

logger = logging.getLogger(__name__)

_TOUCH_EVERY = 15.0  # seconds, where requests may take long


class RequestFailed(NsquarkError):
    """The target answered with a status that is no success."""


class Sending:
    def __init__(
        self,
        targets: Sequence[Target],
        mode: str,
        pool: ClientPool,
        *,
        timeout: float,
        sample: float,
        concurrency: int,
        status: StatusLines,
    ) -> None:
        """A `mode` that chooses no target is `all`."""
        self.counts = Counts()
        self._targets = targets
        self._choice = TargetChoice(MODES[mode], len(targets)) if mode in MODES else None
        self._pool = pool
        self._sample = sample
        self._concurrency = concurrency
        self._status = status
        self._loop = asyncio.get_running_loop()
        longest = timeout * (len(targets) if self._choice is None else 1)
        self._touch_every = _TOUCH_EVERY if longest > 2 * _TOUCH_EVERY else None

    async def send_all(self, consumer: Consumer) -> None:
        """Send the messages of a consumer until it is closed."""
        await consumer.run(self._handle, concurrency=self._concurrency, touch_every=self._touch_every)

    async def _handle(self, message: Message) -> None:
        if self._sample < 1 and random() >= self._sample:
            self.counts.dropped += 1
            return
        started = self._loop.time()
        try:
            if self._choice is None:
                for target in range(len(self._targets)):
                    await self._send(target, message.body)
            else:
                await self._send_to_one(self._choice, message.body)
        except NsquarkError as error:
            self.counts.requeued += 1
            logger.warning("ERROR: %s: %r is requeued", error, message)
            raise Requeue from None
        self.counts.forwarded += 1
        self._status.delivered(self._loop.time() - started)

    async def _send_to_one(self, choice: TargetChoice, body: bytes) -> None:
        picked = choice.pick(self._loop.time())
        try:
            await self._send(picked.host, body)
        except NsquarkError:
            picked.mark(False, self._loop.time())
            raise
        picked.mark(True, self._loop.time())

    async def _send(self, number: int, body: bytes) -> None:
        """Raises NsquarkError, unless the target has accepted the message."""
        target = self._targets[number]
        started = self._loop.time()
        try:
            deadline = self._pool.deadline()
            reply = await self._pool.send(target.origin, target.pack(body), deadline)
            if 300 <= reply.status < 400:
                reply = await self._pool.follow(target.request(body), reply, deadline)
        except NsquarkError as error:
            raise RequestFailed(f"{target.shown}: {error}") from None
        if not target.accepts(reply.status):
            raise RequestFailed(f"{target.shown}: got status code {reply.status}")
        self._status.target_took(number, self._loop.time() - started)
