"""What a consumer has been sent and has not answered yet.

Messages that were delivered together are one `Flight`: ids that follow each other, one delivery time, one
deadline. Answers cut pieces out of it, so in-order FINs only move its beginning.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from nsquark.kernel import AnswerQueue, Buffer, Flight, Taker

if TYPE_CHECKING:
    from nsquark.nsqd.protocol.connection import Connection

NEVER = 1 << 63
_first = attrgetter("first")


class Consumer(Taker):
    """A connection as its channel sees it: how much it may be sent, and what it has."""

    __slots__ = ("connection",)

    def __init__(
        self,
        connection: Connection,
        send: Callable[[Buffer], None],
        msg_timeout_ns: int,
        sample_rate: int = 0,
        answers: AnswerQueue | None = None,
    ) -> None:
        """Messages go out by `send`, or where `answers` go past the transport, past it as well."""
        super().__init__(send, answers, msg_timeout_ns, sample_rate)
        self.connection = connection

    def find(self, message: int) -> Flight | None:
        at = bisect_right(self.flights, message, key=_first) - 1
        if at >= 0 and message < self.flights[at].end:
            return self.flights[at]
        return None

    def take(self, first: int, end: int) -> list[Flight]:
        """Remove the ids [first, end), as far as they are in flight here; gives them in order."""
        pieces: list[Flight] = []
        flights = self.flights
        at = max(bisect_right(flights, first, key=_first) - 1, 0)
        while at < len(flights) and flights[at].first < end:
            flight = flights[at]
            start, stop = max(first, flight.first), min(end, flight.end)
            if start >= stop:
                at += 1
                continue
            taken = flight.piece(start, stop)
            if start == flight.first and stop == flight.end:
                del flights[at]
            elif start == flight.first:
                flight.position += stop - start
                flight.first = stop
            else:
                if stop < flight.end:
                    flights.insert(at + 1, flight.piece(stop, flight.end))
                flight.end = start
                at += 1
            pieces.append(taken)
        return pieces

    def drop(self, start: int, end: int) -> int:
        """Remove the positions [start, end), as far as they are in flight here; returns how many."""
        number = 0
        for flight in list(self.flights):
            first = flight.first + max(0, start - flight.position)
            last = min(flight.end, flight.first + end - flight.position)
            if first < last:
                number += sum(piece.end - piece.first for piece in self.take(first, last))
        return number

    def overdue(self, now: int, most: int = sys.maxsize) -> list[Flight]:
        """Remove the flights whose deadline has come, `most` at most."""
        late = [flight for flight in self.flights if flight.deadline <= now]
        if late:
            kept = [flight for flight in self.flights if flight.deadline > now]
            self.flights = sorted([*late[most:], *kept], key=_first) if len(late) > most else kept
            del late[most:]
        self.next_deadline = min((flight.deadline for flight in self.flights), default=NEVER)
        return late
