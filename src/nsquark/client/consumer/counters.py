"""The counters of a consumer, which `Consumer.stats` shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumerCounters:
    """The fields mean what those of the same name in `ConsumerStats` mean."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    discarded: int = 0
    gave_up: int = 0
    expired_answers: int = 0
    most_in_flight: int = 0
    last_error: Exception | None = None
