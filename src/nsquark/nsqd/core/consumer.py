"""A consumer: how many messages it may be sent, and which it has been sent and has not answered.

Messages that were delivered together are one `Flight`. Answers cut pieces out of it, so FINs that come in
order only move its beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from nsquark.kernel import Buffer, write_some

from .answers import AnswerQueue
from .in_flight import Flight

if TYPE_CHECKING:
    from nsquark.nsqd.protocol.connection import Connection

    from .channel import Channel

NEVER = 1 << 63
_first = attrgetter("first")


class Consumer:
    """A connection as its channel sees it. A consumer that has left its channel has no room."""

    __slots__ = (
        "answers", "channel", "connection", "finish_count", "flights", "in_flight_count", "message_count",
        "msg_timeout_ns", "next_deadline", "ready_count", "requeue_count", "sample_rate", "send", "writable",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        send: Callable[[Buffer], None],
        msg_timeout_ns: int,
        sample_rate: int = 0,
        answers: AnswerQueue | None = None,
    ) -> None:
        """`send` hands bytes to the connection's transport. Where `answers` has a descriptor, messages that
        are sent alone go to that descriptor, past the transport; through TLS or compression they go at once.
        """
        self.connection = connection
        self.send = send
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.answers = answers
        self.channel: Channel | None = None
        self.ready_count = 0  # RDY
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.writable = True
        self.flights: list[Flight] = []  # by id
        self.next_deadline = NEVER  # no flight has an earlier one

    def room(self) -> int:
        """How many more messages the consumer may be sent now. Negative after a lower RDY."""
        if not self.writable or self.channel is None:
            return 0
        return self.ready_count - self.in_flight_count

    def put(self, frames: Buffer, alone: bool) -> None:
        """Send message frames. `alone` says that nothing follows at once that could share a system call."""
        answers = self.answers
        if alone and answers is not None:
            if answers.layered:
                answers.write_now(frames)
                return
            if answers.can_pass():
                done = write_some(answers.fd, frames)
                if done == len(frames):
                    return
                frames = memoryview(frames)[done:]
        self.send(frames)

    # ---- flights

    def add(self, flight: Flight) -> None:
        flights = self.flights
        last = flights[-1] if flights else flight
        if flight.first < last.first:
            flights.insert(self._place(flight.first) + 1, flight)
        else:
            flights.append(flight)
        if flight.deadline < self.next_deadline:
            self.next_deadline = flight.deadline

    def _place(self, message: int) -> int:
        """Where in `flights` the last one is that begins at or before this id; -1 if there is none."""
        flights = self.flights
        low, high = 0, len(flights)
        while low < high:
            middle = (low + high) // 2
            flight = flights[middle]
            if flight.first <= message:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def find(self, message: int) -> Flight | None:
        """The flight that holds this id."""
        at = self._place(message)
        if at < 0:
            return None
        flight = self.flights[at]
        return flight if message - flight.first < flight.count else None

    def take(self, first: int, count: int) -> list[Flight]:
        """Remove the `count` ids from `first` on, as far as they are in flight here; gives them in order.

        The last of these ids may be the last of all, so the id behind it is never computed.
        """
        pieces: list[Flight] = []
        flights = self.flights
        last = first + (count - 1)
        at = max(self._place(first), 0)
        while at < len(flights):
            flight = flights[at]
            if flight.first > last:
                break
            flight_last = flight.first + (flight.count - 1)
            if flight_last < first:
                at += 1
                continue
            before = first - flight.first if first > flight.first else 0
            behind = flight_last - last if flight_last > last else 0
            number = flight.count - before - behind
            if number == flight.count:
                pieces.append(flight)
                del flights[at]
                continue
            pieces.append(flight.piece(before, number))
            if not before:
                flight.drop_front(number)
                break
            at += 1
            if behind:
                flights.insert(at, flight.piece(before + number, behind))
            flight.count = before
        return pieces

    def drop(self, start: int, end: int) -> int:
        """Remove the positions [start, end), as far as they are in flight here; returns how many."""
        number = 0
        for flight in list(self.flights):
            skip = max(0, start - flight.position)
            count = min(flight.count, end - flight.position) - skip
            if count > 0:
                number += sum([piece.count for piece in self.take(flight.first + skip, count)])
        return number

    def overdue(self, now: int, most: int = sys.maxsize) -> list[Flight]:
        """Remove the flights whose deadline has come, `most` at most."""
        late = [flight for flight in self.flights if flight.deadline <= now]
        if late:
            kept = [flight for flight in self.flights if flight.deadline > now]
            self.flights = sorted([*late[most:], *kept], key=_first) if len(late) > most else kept
            del late[most:]
        self.next_deadline = min([flight.deadline for flight in self.flights], default=NEVER)
        return late
