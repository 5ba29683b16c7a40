"""What a channel owes: a cursor over its topic's log, and the exceptions.

The cursor delivers everything that lies at or behind it, except what is `skipped`. Before the cursor, an
unfinished message is in one of four places: it is in flight to a consumer, it is requeued and waits for its
turn, it is deferred and waits for its time, or it is on its way to the dead letters. Every other message
before the cursor is finished. The topic's journal gets a record of every change that must survive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.log import ChannelState, Cursor, Deferred, Journal, JournalRecords, NotIndexed, Ranges, Run
from nsquark.names import is_ephemeral

from .in_flight import Flight
from .redelivery import DeferredQueue, RequeuedQueue

if TYPE_CHECKING:
    from .consumer import Consumer
    from .topic import Topic

logger = logging.getLogger(__name__)

MAX_RUN_BYTES = 256 << 10
SNAPSHOT_STEP = 500  # entries


class Backlog:
    """Where each message of a channel is."""

    dead_lettering: RequeuedQueue  # on their way to the dead letters, and not there for sure

    def __init__(self, topic: Topic, name: str, number: int, position: int) -> None:
        """`number` is the channel's in the journal of its topic; its cursor begins at `position`."""
        self.topic = topic
        self.name = name
        self.number = number
        self.ephemeral = is_ephemeral(name)
        self.bounded = self.ephemeral or topic.ephemeral  # in memory only: an excess is dropped
        self.journal: Journal | None = None if self.bounded else topic.journal
        self.cursor = Cursor(topic.log, position)
        self.skipped = Ranges()  # at and behind the cursor: finished before a crash, deferred, dropped
        self.requeued = RequeuedQueue()
        self.deferred = DeferredQueue()
        self.moves = 0  # by seeking, for readers of the log that commit to the channel
        self.emptied = Ranges()  # by operators, for the same readers
        self.consumers: dict[Consumer, None] = {}
        self.in_flight_count = 0

    # ---- how much there is

    @property
    def deferred_count(self) -> int:
        return self.deferred.count

    def fresh_count(self) -> int:
        """How many messages the cursor has before it."""
        position = self.cursor.position
        fresh = self.topic.pumped - position
        if self.skipped.count:
            fresh -= self.skipped.count_from(position)
        return fresh

    def fresh(self) -> Iterator[tuple[int, int]]:
        """What the cursor has before it: (start, end)."""
        return self.skipped.gaps(self.cursor.position, self.topic.pumped)

    def queued_count(self) -> int:
        """How many messages can be delivered now."""
        fresh = self.fresh_count()
        return fresh + self.requeued.count if fresh > 0 else self.requeued.count

    @property
    def depth(self) -> int:
        return self.queued_count()

    @property
    def backend_depth(self) -> int:
        """How much of the depth is beyond --mem-queue-size, which NSQ would have in its disk queue.

        It does not tell what is in memory: all of the depth is in the log's files, and an idle log has
        nothing in memory besides.
        """
        if self.topic.ephemeral:
            return 0
        return max(0, self.queued_count() - self.topic.options.mem_queue_size)

    @property
    def unfinished(self) -> int:
        waiting = self.deferred.count + self.dead_lettering.count
        return self.queued_count() + self.in_flight_count + waiting

    # ---- where it is

    def in_flight(self) -> Iterator[tuple[Consumer, Flight]]:
        for consumer in self.consumers:
            for flight in consumer.flights:
                yield consumer, flight

    def low(self) -> int:
        """Everything before this position is finished."""
        low = self.skipped.next_gap(self.cursor.position)
        for _, flight in self.in_flight():
            low = min(low, flight.position)
        for queue in (self.requeued, self.deferred, self.dead_lettering):
            if (first := queue.low) is not None:
                low = min(low, first)
        return low

    def add_needed(self, needed: Ranges) -> None:
        """Add every position that is not finished, for a log that has no files to go back to."""
        for start, end in self.fresh():
            needed.add(start, end)
        for _, flight in self.in_flight():
            needed.add(flight.position, flight.position + flight.count)
        for queue in (self.requeued, self.deferred, self.dead_lettering):
            for entry in queue.by_position():  # in order: a set of ranges grows best at its end
                needed.add(entry.position, entry.position + entry.number)

    # ---- what survives

    def restore(self, state: ChannelState, deferred: Iterable[Deferred], now: int) -> None:
        """Go on from what the journal knows. `deferred` waits as well, and is in order."""
        self.cursor.seek(state.position)
        self.skipped = state.passed
        self.moves, self.emptied = state.moves, state.emptied
        known = [(position, 1, *state.waiting[position]) for position in sorted(state.waiting)]
        published = ((each.position, each.count, 0, each.due) for each in deferred)
        for position, number, attempts, due in merge(known, published) if known else published:
            if due > now:
                self.deferred.push(due, position, number, attempts)
            else:
                self.requeued.push(position, number, attempts, state.position)
        if self.deferred:
            self.wake_when_due(self.deferred.next_due)

    def snapshot(self, journal: JournalRecords) -> Iterator[None]:
        """Add everything to the records of a journal.

        Anything may happen at each yield, as long as its records go to the same file in the order of time.
        Some changes have no record, though: a message is delivered, falls due or is sent to the dead letters
        without one. Such a message goes to a place that the snapshot has not visited yet: from deferred to
        requeued, from requeued to the dead letters or to a consumer. A message that lies ahead of the cursor
        at the beginning is unfinished to the journal wherever it goes.
        """
        if self.journal is None:
            return
        number = self.number
        journal.create(number, self.name, self.cursor.position)
        if self.moves:
            journal.moves(number, self.moves)
        for start, end in self.emptied:
            journal.emptied(number, start, end)
        skipped = iter(self.skipped)  # as it is now, with the cursor where it is now
        while ranges := list(islice(skipped, SNAPSHOT_STEP)):
            for start, end in ranges:
                journal.finish(number, start, end)
            yield
        at = 0
        while deferred := self.deferred.from_position(at, SNAPSHOT_STEP):
            for later in deferred:
                end = later.position + later.number
                journal.requeue(number, later.position, end, later.attempts, later.due)
            at = deferred[-1].position + 1
            yield
        for queue in (self.requeued, self.dead_lettering):
            at = 0
            while requeued := queue.from_position(at, SNAPSHOT_STEP):
                for entry in requeued:
                    end = entry.position + entry.number
                    journal.requeue(number, entry.position, end, entry.attempts, 0)
                at = requeued[-1].position + 1
                yield
        for consumer in list(self.consumers):
            for flight in consumer.flights:
                end = flight.position + flight.count
                journal.requeue(number, flight.position, end, flight.attempts, 0)
            yield

    def finished(self, start: int, end: int) -> None:
        """The positions [start, end) are finished for good."""
        journal = self.journal
        if journal is not None:
            if not journal.dirty:  # else the topic has been told
                self.topic.journaled()
            journal.finish(self.number, start, end)

    def record_requeue(self, position: int, number: int, attempts: int, due: int) -> None:
        if self.journal is not None:
            self.journal.requeue(self.number, position, position + number, attempts, due)
            self.topic.journaled()

    # ---- reading

    def _next_run(self, want: int) -> Run | None:
        """The next run that the cursor is to deliver, of at most `want`; None when the cursor only moved."""
        self.topic.active = True  # the cursor keeps data now, and must let go of them some time
        ahead = self.topic.pumped - self.cursor.position
        want = min(want, ahead)
        if want <= 0:
            return None
        run: Run | None = None
        if not self.skipped.count:
            run = self.cursor.take(want, MAX_RUN_BYTES)  # from memory, where that holds what comes next
        return self._read_next(want) if run is None else run

    def _read_next(self, want: int) -> Run | None:
        """`_next_run`, for everything that may happen."""
        cursor, skipped, topic = self.cursor, self.skipped, self.topic
        position = cursor.position
        if skipped:
            position = skipped.next_gap(position)
            cursor.seek(position)
            skipped.drop_below(position)
            bound = skipped.next_start(position)
            if bound is not None:
                want = min(want, bound - position)
        ahead = topic.pumped - position
        want = min(want, ahead)
        if want <= 0:
            return None
        try:
            run = cursor.read(want, MAX_RUN_BYTES)
        except LogDamaged as error:
            topic.health.leave_out(error)
            return None
        except LogCorrupt as error:
            segment = topic.health.suspect(error)
            cursor.let_go()
            if segment is not None:
                raise NotIndexed(segment) from None
            self._lose_segment(error)
            return None
        if run is None:
            return None
        if run.position > position:  # the log has let go of what lies between
            self.finished(position, run.position)
        if run.due:
            for start, end in skipped.gaps(run.position, run.position + run.count):
                self.push_deferred(run.due, start, end - start, 0)
            return None
        return run

    def read_at(self, position: int, want: int) -> Run | None:
        """The run at a position behind which the cursor is."""
        return Cursor(self.topic.log, position, whatever_due=True).read(want, MAX_RUN_BYTES)

    def _lose_segment(self, error: LogCorrupt) -> None:
        """Go on behind a piece of log that cannot be read, though every batch of it is whole."""
        position = self.cursor.position
        segment = self.topic.log.segment_at(position)
        following = self.topic.log.segment_after(segment) if segment is not None else None
        end = following.base if following is not None else self.topic.log.end
        logger.error(
            "channel %s:%s lost positions %d to %d: %s", self.topic.name, self.name, position, end, error
        )
        self.finished(position, end)
        self.cursor.seek(end)
        self.skipped.drop_below(end)

    # ---- changes

    def end_of_queue(self) -> int:
        """The place of a message that is requeued now.

        It is behind what is queued, as far as that would be in memory in NSQ.
        """
        return min(self.topic.pumped, self.cursor.position + self.topic.options.mem_queue_size)

    def push_deferred(self, due: int, position: int, number: int, attempts: int) -> None:
        """Have these wait until `due`. The journal knows it already."""
        self.deferred.push(due, position, number, attempts)
        self.wake_when_due(due)

    def wake_when_due(self, due: int) -> None:
        """Have the channel look at its deferred messages then. The channel does this by its topic."""
        raise NotImplementedError

    def defer(self, position: int, number: int, attempts: int, due: int) -> None:
        self.record_requeue(position, number, attempts, due)
        self.push_deferred(due, position, number, attempts)

    def hold_back(self, deferred: Iterable[Deferred]) -> None:
        """Defer these, which the topic has just passed on.

        What the channel had before stays as it is: a topic that a crash finds paused may have been further.
        """
        for each in deferred:
            start, end = max(each.position, self.cursor.position), each.position + each.count
            for first, stop in list(self.skipped.gaps(start, end)):
                self.skipped.add(first, stop)
                self.push_deferred(each.due, first, stop - first, 0)

    def pass_over(self, start: int, end: int) -> None:
        """Drop [start, end), which the topic has not passed on yet."""
        if start < end:
            self.skipped.add(start, end)
            self.deferred.drop(start, end)
            self.finished(start, end)

    def lose(self, start: int, end: int) -> None:
        """Finish positions that are not in the log any more, except those in flight."""
        self.cursor.let_go()
        end = min(end, self.topic.pumped)  # the topic will not pass on what lies behind
        if start >= end:
            return
        self.finished(start, end)
        self.drop_waiting(start, end)
        if end > self.cursor.position:
            self.skipped.add(max(start, self.cursor.position), end)

    def drop_waiting(self, start: int, end: int) -> None:
        """Forget what waits of [start, end): requeued, deferred, or on its way to the dead letters."""
        for queue in (self.requeued, self.deferred, self.dead_lettering):
            queue.drop(start, end)

    def forget_waiting(self) -> None:
        for queue in (self.requeued, self.deferred, self.dead_lettering):
            queue.clear()
