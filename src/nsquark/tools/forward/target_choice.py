"""Which target gets which messages: NSQ's modes over the pools of the client.

Messages are assigned as if each came alone, so that two targets in round-robin get equally many, whatever
came in one read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nsquark.client.producer.pool import Mode, PickedHost, Pool, make_pool

T = TypeVar("T")

MODES: dict[str, Mode] = {
    "hostpool": "hostpool",
    "round-robin": "round-robin",
    "epsilon-greedy": "epsilon-greedy",
}


@dataclass(slots=True)
class Assignment(Generic[T]):
    """The messages that one target gets. `mark` tells the pool how it went, once."""

    target: int
    messages: list[T]
    picks: list[PickedHost] = field(default_factory=list)

    def mark(self, ok: bool, now: float) -> None:
        for pick in self.picks:
            pick.mark(ok, now)


class TargetChoice:
    """Assigns messages to targets, and picks a target for a single one."""

    def __init__(self, mode: Mode, targets: int) -> None:
        pool = make_pool(mode, targets)
        assert pool is not None, f"{mode} chooses no target"
        self._pool: Pool = pool
        self._targets = targets

    def pick(self, now: float) -> PickedHost:
        return self._pool.pick(now)

    def assign(self, messages: Sequence[T], now: float) -> list[Assignment[T]]:
        """One assignment for each target that gets some of the messages.

        The pool is asked once for all whole rounds, a round being a message for each target, and once for
        each message of the rest.
        """
        count, targets = len(messages), self._targets
        whole = count - count % targets
        assignments: dict[int, Assignment[T]] = {}
        for place in range(targets if whole else 0):
            self._give(assignments, messages[place:whole:targets], now)
        for place in range(whole, count):
            self._give(assignments, messages[place : place + 1], now)
        return list(assignments.values())

    def _give(self, assignments: dict[int, Assignment[T]], messages: Sequence[T], now: float) -> None:
        pick = self._pool.pick(now)
        assignment = assignments.get(pick.host)
        if assignment is None:
            assignment = assignments[pick.host] = Assignment(pick.host, [])
        assignment.messages += messages
        assignment.picks.append(pick)
