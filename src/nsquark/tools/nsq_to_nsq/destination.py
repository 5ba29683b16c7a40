"""One nsqd that messages are copied to: runs of messages as MPUBs, many of them unanswered at once.

A run that nsqd refuses because of one message is published again without it, so that a message which is too
large for the destination holds up no other. nsqd's limits are not known before: each refusal tells one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from nsquark.client import Message
from nsquark.client.config import Config
from nsquark.client.events import Connected, Event
from nsquark.client.producer.nsqd_publisher import NsqdPublisher
from nsquark.errors import (
    BadBody,
    BadMessage,
    ConnectFailed,
    NsquarkError,
    OutcomeUnknown,
    ProtocolError,
    PublishTimeout,
)
from nsquark.wire.commands import line, pack_many, pack_size

Copy = tuple[Message, bytes]
"""A message, and the body to publish for it."""

Settle = Callable[[Sequence[Copy], NsquarkError | None], None]
"""Called with messages and their outcome; None: they are stored."""

_ANSWER = 30.0  # seconds that the destination has to answer in: half of nsqd's usual message timeout
_MPUB = 1 << 20  # bytes of one MPUB
_LARGEST = 1 << 30
_UNANSWERED = 10_000
_LIMIT = re.compile(rb"too big \d+ > (\d+)$")


class TooLarge(NsquarkError):
    """A body is larger than the destination takes, by what it said before."""


class Destination:
    def __init__(self, address: str, config: Config) -> None:
        self.address = address
        self._publisher = NsqdPublisher(address, config, self._on_event)
        self._max_msg_size = _LARGEST  # lowered when nsqd tells its limit
        self._max_body_size = _MPUB
        self._refusals = 0
        self._refused = False  # the connection ends because of a refusal
        self._lines: dict[str, bytes] = {}

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Connected):
            if not self._refused:  # it may be another nsqd, with other limits
                self._max_msg_size, self._max_body_size = _LARGEST, _MPUB
            self._refused = False

    async def deliver(self, topic: str, copies: Sequence[Copy], settle: Settle) -> None:
        """Publish all of them, and `settle` each part of them as its outcome is known."""
        runs = self._split(copies, settle)
        if len(runs) == 1:
            await self._deliver_run(topic, runs[0], settle)
        else:
            await asyncio.gather(*(self._deliver_run(topic, run, settle) for run in runs))

    def _split(self, copies: Sequence[Copy], settle: Settle) -> list[Sequence[Copy]]:
        """Runs that fit into one command each. Messages that are known to be too large are settled."""
        sizes = [len(body) for _, body in copies]
        if max(sizes) <= self._max_msg_size and sum(sizes) + 4 * len(sizes) + 4 <= self._max_body_size:
            return [copies]
        runs: list[Sequence[Copy]] = []
        run: list[Copy] = []
        room = 0
        for copy, size in zip(copies, sizes, strict=True):
            if size > self._max_msg_size:
                settle([copy], TooLarge(f"a body of {size} bytes; it takes {self._max_msg_size}"))
                continue
            if not run or size + 4 > room:
                run = []
                runs.append(run)
                room = self._max_body_size - 4
            run.append(copy)
            room -= size + 4
        return runs

    async def _deliver_run(self, topic: str, run: Sequence[Copy], settle: Settle) -> None:
        while True:
            refusals = self._refusals
            try:
                await self._publish(topic, [body for _, body in run])
            except (BadMessage, BadBody) as error:
                self._refusals += 1
                self._refused = True
                await self._deliver_refused(topic, run, settle, error)
            except (OutcomeUnknown, ConnectFailed) as error:
                if self._refusals != refusals:
                    # Another run was refused, which ends the connection. nsqd has read nothing after it.
                    continue
                settle(run, error)
            except NsquarkError as error:
                settle(run, error)
            else:
                settle(run, None)
            return

    async def _deliver_refused(
        self, topic: str, run: Sequence[Copy], settle: Settle, error: ProtocolError
    ) -> None:
        """Deliver the messages of a refused run that are not at fault."""
        if self._learn(error):
            await self.deliver(topic, run, settle)
        elif len(run) > 1:
            for copy in run:
                await self._deliver_run(topic, [copy], settle)
        else:
            settle(run, error)

    def _learn(self, error: ProtocolError) -> bool:
        """Take over the limit that the error tells. False if nothing new was learnt."""
        found = _LIMIT.search(error.description)
        limit = int(found[1]) if found is not None else _LARGEST
        if isinstance(error, BadMessage) and limit < self._max_msg_size:
            self._max_msg_size = limit
        elif isinstance(error, BadBody) and limit < self._max_body_size:
            self._max_body_size = limit
        else:
            return False
        return True

    async def _publish(self, topic: str, bodies: list[bytes]) -> None:
        """Return when nsqd has stored the messages. Raises NsquarkError."""
        head = self._lines.get(topic)
        if head is None:
            head = self._lines[topic] = line("PUB", topic)
        if len(bodies) == 1:
            command: Sequence[bytes] = (head, pack_size(len(bodies[0])), bodies[0])
        else:
            command = (pack_many(b"M" + head, bodies, _LARGEST, _LARGEST),)
        publisher = self._publisher
        connection = publisher.connection
        deadline = asyncio.get_running_loop().time() + _ANSWER
        if connection is None or not connection.open or connection.write_resumed is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await publisher.connected(patient=False)
                    await publisher.room(connection, _UNANSWERED)
            except TimeoutError:
                raise PublishTimeout(f"{self.address}: could not be sent in time", sent=False) from None
            if not connection.open:
                raise ConnectFailed(f"{self.address}: the connection was lost before anything was sent")
        await publisher.ask(connection, command, sum(map(len, command)), deadline)

    async def close(self) -> None:
        await self._publisher.close()
