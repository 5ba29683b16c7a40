"""When a message of a replay is due. Time is an argument."""

from __future__ import annotations

from typing import Protocol


class Pace(Protocol):
    def due(self, timestamp: float, now: float) -> float:
        """When the next message is to go out; its own `timestamp` is in seconds."""
        ...


class AtOnce:
    """As fast as it goes."""

    def due(self, timestamp: float, now: float) -> float:
        return now


class Rate:
    """So many a second. What could not be sent in time is not made up for: a rate is an upper bound."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate
        self._next: float | None = None

    def due(self, timestamp: float, now: float) -> float:
        if self._next is None or self._next < now - 1.0:
            self._next = now
        due = self._next
        self._next += self._gap
        return due


class RealTime:
    """With the time between messages that they had, divided by `speed`."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began: tuple[float, float] | None = None  # the first message: its time, and ours

    def due(self, timestamp: float, now: float) -> float:
        if self._began is None:
            self._began = (timestamp, now)
        first, began = self._began
        return began + (timestamp - first) / self._speed


def pace_of(rate: float, speed: float) -> Pace:
    return Rate(rate) if rate else RealTime(speed) if speed else AtOnce()
