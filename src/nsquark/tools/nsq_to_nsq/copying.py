"""Copying: what a consumer has read is assigned to the destinations, and answered by their answers.

A message is finished when its destination has stored it. When the destination fails, cannot be reached or
does not answer, the message is requeued and the consumer backs off. A message that is too large for the
destination is requeued without backing off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from nsquark.client import Consumer, Message
from nsquark.errors import BadBody, BadMessage, ConnectFailed, NsquarkError

from ..forward.running import Counts
from ..forward.target_choice import MODES, Assignment, TargetChoice
from ..forward.timing import StatusLines
from .destination import Copy, Destination, TooLarge
from .json_filter import Dropped, JsonFilter, MissingField

logger = logging.getLogger(__name__)

_MESSAGES_FAULT = (TooLarge, BadMessage, BadBody)  # errors that say nothing about the destination's health


class Copying:
    def __init__(
        self,
        destinations: Sequence[Destination],
        mode: str,
        destination_topic: str,
        json_filter: JsonFilter,
        status: StatusLines,
    ) -> None:
        """An empty `destination_topic` stands for the name of the topic that is consumed."""
        self.counts = Counts()
        self._destinations = destinations
        self._choice = TargetChoice(MODES[mode], len(destinations))
        # Round-robin has no memory of failures, so that it would only fail again.
        self._reassignments = 0 if mode == "round-robin" else len(destinations) - 1
        self._topic = destination_topic
        self._filter = json_filter
        self._status = status
        self._deliveries: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def copy(self, consumer: Consumer) -> None:
        """Copy until the consumer is closed. Deliveries may still be under way then."""
        topic = self._topic or consumer.topic
        most = consumer.config.max_in_flight or 1
        while messages := await consumer.take(most):
            if self._filter.active:
                copies = self._filtered(messages)
            else:
                copies = [(message, message.body) for message in messages]
            if copies:
                self._assign(topic, copies, self._reassignments)

    async def close(self) -> None:
        """Give up the deliveries under way. Their messages must have been answered, or be nsqd's again."""
        for task in self._deliveries:
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        for destination in self._destinations:
            await destination.close()

    # ---- filtering

    def _filtered(self, messages: Sequence[Message]) -> list[Copy]:
        """The messages that pass, with the bodies to publish. The others are answered."""
        passed = []
        for message in messages:
            try:
                passed.append((message, self._filter.apply(message.body)))
            except Dropped as error:
                if error.reason:
                    logger.warning("ERROR: %s: %r is left out", error.reason, message)
                self.counts.dropped += 1
                message.finish()
            except MissingField as error:
                logger.warning("ERROR: %s: %r is requeued", error, message)
                self.counts.requeued += 1
                message.requeue()
        return passed

    # ---- delivering

    def _assign(self, topic: str, copies: Sequence[Copy], reassignments: int) -> None:
        for assignment in self._choice.assign(copies, self._loop.time()):
            task = self._loop.create_task(self._deliver(topic, assignment, reassignments))
            self._deliveries.add(task)
            task.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a delivery failed", exc_info=error)

    async def _deliver(self, topic: str, assignment: Assignment[Copy], reassignments: int) -> None:
        started = self._loop.time()
        destination = self._destinations[assignment.target]
        unsent: list[Copy] = []
        healthy = True

        def settle(copies: Sequence[Copy], error: NsquarkError | None) -> None:
            nonlocal healthy
            if error is not None and not isinstance(error, _MESSAGES_FAULT):
                healthy = False
            if reassignments and isinstance(error, ConnectFailed):
                unsent.extend(copies)
                return
            self._answer(destination.address, copies, error)
            took = self._loop.time() - started
            self._status.target_took(assignment.target, took, len(copies))
            self._status.delivered(took, len(copies))

        await destination.deliver(topic, assignment.messages, settle)
        assignment.mark(healthy, self._loop.time())
        if unsent:  # nothing of these has left: another destination may take them
            self._assign(topic, unsent, reassignments - 1)

    def _answer(self, address: str, copies: Sequence[Copy], error: NsquarkError | None) -> None:
        if error is None:
            self.counts.forwarded += len(copies)
            for message, _ in copies:
                message.finish()
            return
        # Errors of the connection name the destination already.
        reason = str(error) if str(error).startswith(address) else f"{address}: {error}"
        logger.warning("ERROR: %s: %s requeued", reason, _messages(copies))
        self.counts.requeued += len(copies)
        # The consumer does not slow down for a message that is at fault itself.
        backoff = not isinstance(error, _MESSAGES_FAULT)
        for message, _ in copies:
            message.requeue(backoff=backoff)


def _messages(copies: Sequence[Any]) -> str:
    return "1 message is" if len(copies) == 1 else f"{len(copies)} messages are"
