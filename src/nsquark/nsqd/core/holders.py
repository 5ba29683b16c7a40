"""Which consumer of a channel has a message in flight.

That is asked when a client answers a message that it does not have. A client may send very many of
those, and a channel may have very many consumers, so not all of them are searched each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sortedcontainers import SortedDict

from .consumer import Consumer

MANY = 1000


class Holders:
    """To whom every id was delivered last. Whether it is still in flight there is the consumer's to say."""

    __slots__ = ("_added", "_built", "_spans")

    def __init__(self, consumers: Iterable[Consumer]) -> None:
        """Everything that is in flight now. Later deliveries are given to `find`."""
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
        """The consumer that has this id in flight; takes over the deliveries since the last time."""
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
        """The ids [first, end) are the consumer's, whoever had some of them before."""
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
