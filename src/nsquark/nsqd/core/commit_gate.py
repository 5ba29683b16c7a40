"""What waits until the other members of a replica group have it: answers, deliveries and readers.

A topic of a node that belongs to no group has no gate, and nothing waits. In a group, what a topic has
written goes to the other members in frames with sequence numbers. The gate keeps the steps that follow
(answers, deliveries) until the sequence is committed: until every member that could lead has the frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from .answers import Receipt, settle_all

logger = logging.getLogger(__name__)

NOTHING = -1  # not even the directory as it was opened is committed
OPENING = "the copies of the directory are not confirmed yet"


class CommitGate:
    """Steps are taken in the order in which they were handed over, each once its sequence is committed."""

    def __init__(self, schedule: Callable[[], None], flush: Callable[[], None]) -> None:
        """`flush` sends what is written, and calls `sent`. `schedule` has that done in this turn."""
        self.refusing = OPENING  # why publishes are refused; empty while they are not
        self.committed = NOTHING
        self._sequence = 0  # of the last frame
        self._schedule = schedule
        self._flush = flush
        self._unsent: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, list[Callable[[], None]]]] = deque()
        self._awaited: tuple[int, asyncio.Future[None]] | None = None  # by `wait`, and for which sequence

    def then(self, step: Callable[[], None]) -> None:
        """Take a step when everything that is written by now is committed."""
        self._unsent.append(step)
        self._schedule()

    async def wait(self, seconds: float) -> bool:
        """Wait until everything that is written by now is committed, at most so long; whether it is."""
        self._flush()
        if self.committed >= self._sequence:
            return True
        if self._awaited is None or self._awaited[0] != self._sequence:
            # One for all that wait for this sequence: clients may come again and again.
            done = asyncio.get_running_loop().create_future()
            self._awaited = self._sequence, done
            self._waiting.append((self._sequence, [partial(done.set_result, None)]))
        return bool((await asyncio.wait([self._awaited[1]], timeout=seconds))[0])

    def sent(self, sequence: int) -> None:
        """Everything written so far is in the frames up to `sequence`."""
        self._sequence = sequence
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._waiting.append((sequence, unsent))
            if self.committed >= sequence:
                self._take()

    def commit(self, sequence: int) -> None:
        """Everything in the frames up to `sequence` is committed."""
        self.committed = max(self.committed, sequence)
        self._take()

    def _take(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.committed:
            steps = waiting.popleft()[1]
            for step in steps:
                try:
                    step()
                except Exception:
                    logger.exception("what waited for a commit has failed")


class CopiedAndSynced:
    """The receipts of a commit that wait for two things: the other members, and this node's disk."""

    __slots__ = ("_left", "_receipts")

    def __init__(self, receipts: list[Receipt]) -> None:
        self._receipts = receipts
        self._left = 2

    def settle(self, reason: str | None) -> None:
        self._left -= 1
        if reason is not None:
            receipts, self._receipts = self._receipts, []
            for receipt in receipts:
                receipt.settle(reason)
        elif self._left == 0:
            settle_all(self._receipts)
