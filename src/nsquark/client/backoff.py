"""Backing off when handlers fail: the strategies, and the automaton. No timers, no connections.

A consumer that backs off pauses (RDY 0 everywhere) and then takes a single message. If its handler succeeds,
the level falls; if it fails, the level rises. At level 0 every connection gets its RDY again.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Protocol

from nsquark.errors import UsageError


class Backoff(Protocol):
    """How long to pause at each level. `cap` bounds every pause; a `cap` of 0 turns backoff off."""

    @property
    def cap(self) -> float: ...

    def longest(self, level: int) -> float:
        """The longest pause of this level, in seconds, before the cap."""

    def pause(self, level: int) -> float:
        """The pause of this level, in seconds, before the cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """`multiplier` × 2^level: 2, 4, 8, … seconds unless told otherwise."""

    multiplier: float = 1.0
    cap: float = 120.0

    def __post_init__(self) -> None:
        _check(self.multiplier, self.cap)

    def longest(self, level: int) -> float:
        return self.multiplier * 2.0 ** min(level, 64)

    def pause(self, level: int) -> float:
        return self.longest(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullJitter:
    """Anything from 0 to `multiplier` × 2^level, so that many consumers do not come back at once."""

    multiplier: float = 1.0
    cap: float = 120.0

    def __post_init__(self) -> None:
        _check(self.multiplier, self.cap)
        if not self.multiplier:
            raise UsageError("backoff_multiplier 0 leaves full_jitter nothing to choose from")

    def longest(self, level: int) -> float:
        return self.multiplier * 2.0 ** min(level, 64)

    def pause(self, level: int) -> float:
        return random.random() * self.longest(level)


def _check(multiplier: float, cap: float) -> None:
    for name, value in (("backoff_multiplier", multiplier), ("max_backoff_duration", cap)):
        if not 0 <= value <= 3600:
            raise UsageError(f"{name} {value!r} is not within 0 and 3600 seconds")


class Signal(enum.Enum):
    """The outcome of a handler, by its answer: FIN, REQ, or REQ without backoff."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NEUTRAL = enum.auto()


class Step(enum.Enum):
    """What the consumer does after a signal."""

    NOTHING = enum.auto()
    PAUSE = enum.auto()  # RDY 0 everywhere, for `pause` seconds
    RESUME = enum.auto()  # out of backoff: every connection gets its share


class BackoffState:
    """The automaton: a level, and whether its pause is under way."""

    __slots__ = ("_strategy", "level", "pause", "paused")

    def __init__(self, strategy: Backoff | None) -> None:
        self._strategy = strategy if strategy is not None and strategy.cap > 0 else None
        self.level = 0
        self.paused = False
        self.pause = 0.0  # how long the last one was, or is

    def signal(self, signal: Signal) -> Step:
        """Take an answer into account. Answers during a pause do not count."""
        strategy = self._strategy
        if self.paused or strategy is None:
            return Step.NOTHING
        if signal is Signal.FAILURE:
            # The level rises until its pause is at the cap; higher ones would only take longer to leave.
            if self.level == 0 or strategy.longest(self.level) < strategy.cap:
                self.level += 1
        elif self.level == 0:
            return Step.NOTHING
        elif signal is Signal.SUCCESS:
            self.level -= 1
            if self.level == 0:
                return Step.RESUME
        self.paused = True
        self.pause = min(strategy.pause(self.level), strategy.cap)
        return Step.PAUSE

    def pause_over(self) -> None:
        """The pause has ended: the next message decides."""
        self.paused = False
