"""Publishing many messages to one topic: in batches, several at once, at a rate, counting what is stored."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from nsquark.client import Producer
from nsquark.errors import NsquarkError
from nsquark.wire.commands import split_bodies

from ..failures import Failure, on_one_line

_BATCH: Final = 500
_BATCH_BYTES: Final = 1 << 20
_WINDOW: Final = 8  # batches that are under way
_TICK: Final = 0.02  # seconds that a batch stands for, when there is a rate


class Publishing:
    """Hands bodies to a producer. `stored` counts those that nsqd has answered for, in the order given."""

    def __init__(
        self, producer: Producer, topic: str, timeout: float, *, delay: float = 0.0, rate: float = 0.0
    ) -> None:
        """nsqd may take `timeout` seconds to answer for a batch, or to come back."""
        self._stored = 0
        self._producer = producer
        self._topic = topic
        self._timeout = timeout
        self._delay = delay
        self._rate = rate
        self._window: deque[tuple[asyncio.Future[None], int]] = deque()
        self._due = 0.0  # when the next batch may go, by the loop's clock
        self._largest = _BATCH if not rate else max(1, min(_BATCH, int(rate * _TICK)))

    @property
    def stored(self) -> int:
        self._count_stored()
        return self._stored

    def _count_stored(self) -> None:
        while self._window and _is_stored(self._window[0][0]):
            self._stored += self._window.popleft()[1]

    async def publish(self, bodies: Sequence[bytes]) -> None:
        """Return when these are on their way, and not too many are. Raises Failure."""
        runs: list[Any] = split_bodies(bodies, _BATCH_BYTES)
        for run in runs:
            for first in range(0, len(run), self._largest):
                batch = run[first : first + self._largest]
                await self._pace(len(batch))
                while len(self._window) >= _WINDOW:
                    await self._settle_oldest()
                self._window.append((self._send(batch), len(batch)))

    async def drain(self) -> None:
        """Return when all are stored. Raises Failure."""
        while self._window:
            await self._settle_oldest()

    def _send(self, batch: Sequence[bytes]) -> asyncio.Future[None]:
        if self._delay > 0:
            return asyncio.ensure_future(self._publish_deferred(batch))
        if len(batch) == 1:
            return asyncio.ensure_future(self._producer.publish(self._topic, batch[0], timeout=self._timeout))
        return asyncio.ensure_future(self._producer.publish_many(self._topic, batch, timeout=self._timeout))

    async def _publish_deferred(self, batch: Sequence[bytes]) -> None:
        # NSQ has no command for many deferred messages: they go one by one, without waiting in between.
        await asyncio.gather(
            *(
                self._producer.publish(self._topic, body, delay=self._delay, timeout=self._timeout)
                for body in batch
            )
        )

    async def _pace(self, count: int) -> None:
        if not self._rate:
            return
        loop = asyncio.get_running_loop()
        # What was missed while nsqd or the source stood still is not made up for.
        self._due = max(self._due, loop.time() - _TICK)
        if self._due > loop.time():
            await asyncio.sleep(self._due - loop.time())
        self._due += count / self._rate

    async def _settle_oldest(self) -> None:
        # Not `await oldest`: a Ctrl-C would cancel it, and it would not be known whether it is stored.
        oldest = self._window[0][0]
        await asyncio.wait((oldest,))
        self._count_stored()
        error = oldest.exception()
        if error is None:
            return
        under_way = [each for each, _ in self._window]
        for each in under_way:
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if not isinstance(error, NsquarkError | TimeoutError):
            raise error
        raise Failure(
            f"cannot publish to topic {self._topic!r}: {on_one_line(error)};"
            f" {self._stored:,} were stored before"
        )


def _is_stored(future: asyncio.Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
