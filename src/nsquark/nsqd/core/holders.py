"""Which consumer of a channel has a message in flight.

The channel asks this when a client answers a message that the client does not have. A client may send very
many such answers, and a channel may have very many consumers, so the channel does not search all consumers
each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sortedcontainers import SortedDict

from .consumer import Consumer

MANY = 1000


class Holders:
    """The consumer that got each id last. The consumer itself knows whether the id is still in flight."""

    __slots__ = ("_added", "_built", "_spans")

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        """Take over everything that is in flight now. Later deliveries are given to `find`."""
        self._spans: Any = SortedDict(
            (flight.first, (flight.end, consumer)) for consumer in consumers for flight in consumer.flights
        )
        self._built = len(self._spans)
        self._added = 0

    @property
    def outgrown(self) -> bool:
        """Whether most of what is kept here may have been answered since."""
        return self._added > MANY + self._built

    def find(self, message: int, deliveries: list[tuple[int, int, Consumer]]) -> Consumer | None:
        """Take over the deliveries since the last call; return the consumer that has this id in flight."""
        for first, end, consumer in deliveries:
            self._deliver(first, end, consumer)
        self._added += len(deliveries)
        deliveries.clear()
        start = next(self._spans.irange(None, message, reverse=True), None)
        if start is None:
            return None
        end, holder = self._spans[start]
        found: Consumer | None = holder if message < end and holder.find(message) else None
        return found

    def _deliver(self, first: int, end: int, consumer: Consumer) -> None:
        """Note that the ids [first, end) went to `consumer`, also those that another consumer had before."""
        spans = self._spans
        before = next(spans.irange(None, first, reverse=True), None)
        starts = [*spans.irange(first, end, inclusive=(False, False))]
        for start in starts if before is None else [before, *starts]:
            stop, holder = spans[start]
            if start >= first:
                del spans[start]
            elif stop > first:
                spans[start] = (first, holder)
            if stop > end:
                spans[end] = (stop, holder)
        spans[first] = (end, consumer)
