"""What a channel owes: a cursor over its topic's log, and the exceptions.

Everything from the cursor on is to be delivered, but for what is to be skipped. Of what lies before it, the
exceptions are to be delivered again: what waits for its turn, what waits for its time, and what is on its way
to the dead letters. What is in flight is known to the consumers; everything else is finished. The topic's
journal gets told of every change that must survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from nsquark.kernel import Flight, Outlet
from nsquark.log import ChannelState, Cursor, Deferred, Journal, Ranges
from nsquark.names import is_ephemeral

from .redelivery import AgainQueue, LaterQueue

if TYPE_CHECKING:
    from .topic import Topic

MAX_RUN_BYTES = 256 << 10
SNAPSHOT_STEP = 500  # entries


class Backlog(Outlet):
    topic: Topic
    cursor: Cursor
    journal: Journal | None
    skipped: Ranges  # at and behind the cursor: not to be delivered by it
    again: AgainQueue

    def __init__(self, topic: Topic, name: str, number: int, position: int) -> None:
        super().__init__(topic, number, topic.delivery_times, MAX_RUN_BYTES)
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.bounded = self.ephemeral or topic.ephemeral
        self.cursor = Cursor(topic.log, position)
        self.skipped = Ranges()
        self.again = AgainQueue()
        self._later = LaterQueue()
        self._dying = AgainQueue()  # on their way to the dead letters, and not there for sure
        self.journal = None if self.bounded else topic.journal

    def _flights(self) -> Iterable[Flight]:
        """What is in flight."""
        return chain.from_iterable(self._flights_by_consumer())

    def _flights_by_consumer(self) -> Iterator[list[Flight]]:
        """What is in flight to each consumer, when it comes to it. Consumers may come and go meanwhile."""
        raise NotImplementedError

    def _wake_at(self, due: int) -> None:
        """Have the channel look at its deferred messages then."""
        raise NotImplementedError

    # ---- the state that survives

    def restore(self, state: ChannelState, now: int) -> None:
        """Go on from what the journal knows."""
        self.cursor.seek(state.position)
        self.skipped = state.passed
        for position, (attempts, due) in sorted(state.waiting.items()):
            if due > now:
                self._push_deferred(due, position, 1, attempts)
            else:
                self.again.push(position, 1, attempts, state.position)

    def snapshot(self, journal: Journal) -> Iterator[None]:
        """Add everything to the records of a journal.

        Anything may happen at each yield, as long as its records go to the same file in the order of time.
        Not everything has a record, though: messages are delivered, fall due and become dead letters without
        one. Such a message goes to where this has not looked yet: from deferred to requeued, from there to
        the dying ones or to a consumer. What lies ahead of the cursor at the beginning is unfinished to the
        journal wherever it goes.
        """
        if self.journal is None:
            return
        number = self.number
        journal.create(number, self.name, self.cursor.position)
        skipped = iter(self.skipped)  # as it is now, with the cursor where it is now
        while ranges := list(islice(skipped, SNAPSHOT_STEP)):
            for start, end in ranges:
                journal.finish(number, start, end)
            yield
        at = 0
        while deferred := self._later.from_position(at, SNAPSHOT_STEP):
            for later in deferred:
                end = later.position + later.number
                journal.requeue(number, later.position, end, later.attempts, later.due)
            at = deferred[-1].position + 1
            yield
        for queue in (self.again, self._dying):
            at = 0
            while requeued := queue.from_position(at, SNAPSHOT_STEP):
                for again in requeued:
                    end = again.position + again.number
                    journal.requeue(number, again.position, end, again.attempts, 0)
                at = requeued[-1].position + 1
                yield
        for flights in self._flights_by_consumer():
            for flight in flights:
                end = flight.position + flight.end - flight.first
                journal.requeue(number, flight.position, end, flight.attempts, 0)
            yield

    def low(self) -> int:
        """Everything before this position is finished."""
        low = self.skipped.next_gap(self.cursor.position)
        for flight in self._flights():
            low = min(low, flight.position)
        for queue in (self.again, self._later, self._dying):
            if (first := queue.low) is not None:
                low = min(low, first)
        return low

    def add_needed(self, needed: Ranges) -> None:
        """Add every position that is not finished, for a log that has no files to go back to."""
        for start, end in self.fresh():
            needed.add(start, end)
        for flight in self._flights():
            needed.add(flight.position, flight.position + flight.end - flight.first)
        for queue in (self.again, self._later, self._dying):
            for entry in queue.by_position():  # in order: a set of ranges grows best at its end
                needed.add(entry.position, entry.position + entry.number)

    def _requeued(self, position: int, number: int, attempts: int, due: int) -> None:
        if self.journal is not None:
            self.journal.requeue(self.number, position, position + number, attempts, due)
            self.topic.journaled()

    # ---- what statistics and peeks show

    @property
    def deferred_count(self) -> int:
        return self._later.count

    @property
    def _fresh(self) -> int:
        """How many messages the cursor has before it."""
        fresh = self.topic.pumped - self.cursor.position
        return fresh - self.skipped.count_from(self.cursor.position) if self.skipped else fresh

    @property
    def depth(self) -> int:
        fresh = self._fresh
        return fresh + self.again.count if fresh > 0 else self.again.count

    @property
    def unfinished(self) -> int:
        return self.depth + self.in_flight_count + self._later.count + self._dying.count

    @property
    def backend_depth(self) -> int:
        """What of the depth is not in memory."""
        in_memory = min(self._fresh, self.topic.log.tail_length)
        return max(0, self._fresh - max(0, in_memory)) if not self.topic.ephemeral else 0

    def requeued(self) -> Iterator[tuple[int, int, int]]:
        """What is to be delivered again, as it comes: (position, count, attempts so far)."""
        for entry in self.again:
            yield entry.position, entry.number, entry.attempts

    def fresh(self) -> Iterator[tuple[int, int]]:
        """What the cursor has before it: (start, end)."""
        return self.skipped.gaps(self.cursor.position, self.topic.pumped)

    def deferred(self) -> Iterator[tuple[int, int, int, int]]:
        """What waits for its time, the earliest first: (position, count, attempts so far, due)."""
        for entry in self._later:
            yield entry.position, entry.number, entry.attempts, entry.due

    # ---- the queue

    def _end_of_queue(self) -> int:
        """The place of what is queued now: behind what is there, as far as that would be in memory."""
        return min(self.topic.pumped, self.cursor.position + self.topic.options.mem_queue_size)

    def _push_deferred(self, due: int, position: int, number: int, attempts: int) -> None:
        self._later.push(due, position, number, attempts)
        self._wake_at(due)

    def hold_back(self, deferred: Iterable[Deferred]) -> None:
        """Of what the topic has just passed on, these are for later.

        But for what the channel had before: a topic that a crash finds paused may have been further.
        """
        for each in deferred:
            start, end = max(each.position, self.cursor.position), each.position + each.count
            for first, stop in list(self.skipped.gaps(start, end)):
                self.skipped.add(first, stop)
                self._push_deferred(each.due, first, stop - first, 0)

    def pass_over(self, start: int, end: int) -> None:
        """Drop [start, end), which the topic has not passed on yet."""
        if start < end:
            self.skipped.add(start, end)
            self._later.drop(start, end)
            self.finished(start, end)
