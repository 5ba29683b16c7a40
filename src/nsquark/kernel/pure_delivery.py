"""The short way of messages to those who take them, and of their FINs back.

A channel is an `Outlet`, its consumers are `Taker`s. Whatever is not in order (messages to be delivered again
or later, old files, answers from the middle) is left to who is built on these: `nsqd.channel`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Self

from .pure import Buffer, scan_fins, timestamps
from .pure_intake import AnswerQueue
from .pure_log import Committer, LogCursor, Records, Run, Tally

NEVER = 1 << 63
FIN = 21  # bytes of the command
MOST_NOTED = 10000  # deliveries
_first = attrgetter("first")


class Flight:
    """The messages with ids [first, end); `position` is that of `first`. Times are of a monotonic clock.

    `published` is of `kernel.timestamps`, where somebody wants to know.
    """

    __slots__ = ("attempts", "deadline", "delivered", "end", "first", "position", "published")

    def __init__(
        self, first: int, end: int, position: int, attempts: int, delivered: int, deadline: int
    ) -> None:
        self.first = first
        self.end = end
        self.position = position
        self.attempts = attempts
        self.delivered = delivered
        self.deadline = deadline
        self.published: Sequence[tuple[int, int]] = ()

    def piece(self, first: int, end: int) -> Self:
        position = self.position + first - self.first
        piece = type(self)(first, end, position, self.attempts, self.delivered, self.deadline)
        piece.published = self.published
        return piece


class Taker:
    """Who takes messages: how many it may be sent, and what it has. `send` hands bytes to its transport.

    Where `answers` has a descriptor, what is sent alone goes there past the transport. A taker that belongs
    to no outlet has no room.
    """

    __slots__ = (
        "answers", "finish_count", "flights", "in_flight_count", "message_count", "msg_timeout_ns",
        "next_deadline", "outlet", "ready_count", "requeue_count", "sample_rate", "send", "writable",
    )  # fmt: skip

    def __init__(
        self,
        send: Callable[[Buffer], None],
        answers: AnswerQueue | None,
        msg_timeout_ns: int,
        sample_rate: int,
    ) -> None:
        self.send = send
        self.outlet: Outlet | None = None
        self.answers = answers
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.writable = True
        self.flights: list[Flight] = []  # by id
        self.next_deadline = NEVER  # no flight has an earlier one

    @property
    def free(self) -> int:
        """How many more messages it may be sent now."""
        if not self.writable or self.outlet is None:
            return 0
        return self.ready_count - self.in_flight_count

    def add(self, flight: Flight) -> None:
        flights = self.flights
        if flights and flight.first < flights[-1].first:
            flights.insert(bisect_right(flights, flight.first, key=_first), flight)
        else:
            flights.append(flight)
        if flight.deadline < self.next_deadline:
            self.next_deadline = flight.deadline

    def put(self, frames: Buffer, alone: bool) -> None:
        """Send; `alone` if nothing more is to follow at once, with which it could share a system call."""
        answers = self.answers
        if alone and answers is not None and answers.fd >= 0:
            transport = answers.transport
            if not transport.get_write_buffer_size() and not transport.is_closing():
                try:
                    # The descriptor is the connection's until connection_lost: see Answer.sent.
                    done = os.write(answers.fd, frames)
                except OSError:
                    done = 0  # full or broken: the transport finds out
                if done == len(frames):
                    return
                frames = memoryview(frames)[done:]
        self.send(frames)


class Outlet:
    """The place where a channel gives out what lies between its cursor and the topic's `pumped`."""

    topic: Committer
    cursor: LogCursor

    def __init__(self, topic: Committer, number: int, times: Tally, max_run_bytes: int) -> None:
        """`times` are those from publish to delivery; `number` is the channel's in its `journal`."""
        self.topic = topic
        self.number = number
        self.delivery_times = times
        self.max_run_bytes = max_run_bytes
        self.max_runs = 128  # in one go, but for the rest of a round: others have their turn before more
        self.journal: Records | None = None
        self.again: Any = None  # what comes before the cursor's, sooner or later; has a `count`
        self.skipped: Any = None  # what the cursor is to pass over; has a `count`
        self.latency: Any = None  # hears of every FIN, if there is one
        self.deliveries: list[tuple[int, int, Any]] | None = None  # (first id, end, taker), if noted
        self.ready: dict[Any, None] = {}  # takers that may have room, in turn
        self.in_flight_count = 0
        self.paused = False
        self.exiting = False
        self.unreadable = False  # what comes next, when it was last tried
        self.bounded = False  # what is too much is dropped behind every delivery
        self.listed = False  # the topic tells it of new messages; so it does while anybody is `ready`

    def deliver_rest(self, now: int, monotonic: int) -> None:
        """Send what there is to those who have room, in turn and in proportion to their room."""
        raise NotImplementedError

    def not_sent(self, run: Run, attempts: int) -> None:
        """The consumer for which this run was read has left: the run is to be delivered to another."""
        raise NotImplementedError

    def drop_excess(self) -> None:
        raise NotImplementedError

    def finish_pieces(self, consumer: Any, first: int, end: int) -> list[int]:
        """`finish`, for ids that are not the first of the consumer's."""
        raise NotImplementedError

    def deliver(self, now: int, monotonic: int) -> None:
        """Send what there is to those who have room. `now` is ns since the epoch."""
        if not self.paused and not self.exiting:
            # The compiled twin does the same for what is at hand and in order.
            self.deliver_rest(now, monotonic)
        if self.bounded:
            self.drop_excess()

    def offer(self, consumer: Any) -> bool:
        """Note the consumer as ready, if it has room. This is the only way into `ready`."""
        if consumer.free <= 0:
            return False
        self.ready[consumer] = None
        if not self.listed:
            self.topic.list_channel(self)  # type: ignore[attr-defined]
        return True

    def take_off(
        self, consumer: Any, run: Run, frames: Buffer, attempts: int, monotonic: int, alone: bool = False
    ) -> None:
        """The run goes out to the consumer and is in flight from now on."""
        if consumer.outlet is not self:
            self.not_sent(run, attempts - 1)
            return
        number = run.count
        deadline = monotonic + consumer.msg_timeout_ns
        if deadline < consumer.next_deadline:
            self.topic.wake_channel(self, deadline)
        flight = Flight(run.first_id, run.first_id + number, run.position, attempts, monotonic, deadline)
        if self.latency is not None:
            flight.published = timestamps(frames, run.first_id)
        consumer.add(flight)
        consumer.in_flight_count += number
        consumer.message_count += number
        self.in_flight_count += number
        if self.deliveries is not None:
            if len(self.deliveries) < MOST_NOTED:
                self.deliveries.append((run.first_id, run.first_id + number, consumer))
            else:
                self.deliveries = None  # nobody has asked for long
        consumer.put(frames, alone)

    def finish(self, consumer: Any, first: int, end: int) -> list[int]:
        """The consumer is done with the ids [first, end). Returns those it did not have in flight."""
        done = self._finish_first(consumer, first, end - first)
        return [] if first + done == end else self.finish_pieces(consumer, first + done, end)

    def finish_read(self, consumer: Any, data: Buffer, end: int) -> int:
        """Take the FINs with which data[:end] begins, as far as they are for what the consumer has first.

        Returns how many bytes those are.
        """
        at = 0
        _, ranges = scan_fins(data, 0, min(end, len(data)))
        for first, last in ranges:
            done = self._finish_first(consumer, first, last - first)
            at += FIN * done
            if first + done < last:
                break
        return at

    def _finish_first(self, consumer: Any, first: int, count: int) -> int:
        """How many of the ids are the first that the consumer has: the usual case is all of them."""
        flights, done = consumer.flights, 0
        if self.latency is not None:
            return 0
        while done < count and flights and flights[0].first == first + done:
            flight = flights[0]
            number = min(count - done, flight.end - flight.first)
            self.finished(flight.position, flight.position + number)
            if first + done + number == flight.end:
                del flights[0]
            else:
                flight.first += number
                flight.position += number
            done += number
        if done:
            consumer.finish_count += done
            self.landed(consumer, done)
        return done

    def finished(self, start: int, end: int) -> None:
        """The positions [start, end) are, for good."""
        journal = self.journal
        if journal is not None:
            if not journal.dirty:  # who made it so has said it
                self.topic.journaled()  # type: ignore[attr-defined]
            journal.finish(self.number, start, end)

    def landed(self, consumer: Any, number: int) -> None:
        """`number` messages of the consumer are not in flight any more."""
        self.in_flight_count -= number
        consumer.in_flight_count -= number
        if self.offer(consumer) and (self.cursor.position < self.topic.pumped or self.again.count):
            self.topic.channel_ready(self)  # type: ignore[attr-defined]
