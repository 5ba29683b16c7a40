"""When a replay publishes each message. Time is an argument."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    def due(self, timestamp: float, now: float) -> float:
        """When to publish the next message, whose timestamp is in seconds."""
        ...


class Unpaced:
    """Every message is due at once."""

    def due(self, timestamp: float, now: float) -> float:
        return now


class Rate:
    """So many messages a second at most. A replay that falls behind by a second does not catch up."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate
        self._next: float | None = None

    def due(self, timestamp: float, now: float) -> float:
        if self._next is None or self._next < now - 1.0:
            self._next = now
        due = self._next
        self._next += self._gap
        return due


class OriginalTiming:
    """The messages keep the time that was between them, divided by `speed`."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, float] | None = None  # timestamp of the first message, and its time now

    def due(self, timestamp: float, now: float) -> float:
        if self._began is None:
            self._began = (timestamp, now)
        first, began = self._began
        return began + (timestamp - first) / self._speed


def choose_pace(rate: float, speed: float) -> Pace:
    return Rate(rate) if rate else OriginalTiming(speed) if speed else Unpaced()
