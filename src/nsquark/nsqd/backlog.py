"""What a channel owes: a cursor over its topic's log, and the exceptions.

Everything from the cursor on is to be delivered, but for what is to be skipped. Of what lies before it, the
exceptions are to be delivered again: what waits for its turn, what waits for its time, and what is on its way
to the dead letters. What is in flight is known to the consumers; everything else is finished. The topic's
journal gets told of every change that must survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nsquark.kernel import Flight, Outlet
from nsquark.log import ChannelState, Cursor, Deferred, Journal, Ranges
from nsquark.names import is_ephemeral

from .waiting import AgainQueue, LaterQueue

if TYPE_CHECKING:
    from .topic import Topic

MAX_RUN_BYTES = 256 << 10


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

    def snapshot(self) -> None:
        """Write everything into the journal, which has just begun a new file."""
        journal = self.journal
        if journal is None:
            return
        journal.create(self.number, self.name, self.cursor.position)
        for start, end in self.skipped:
            journal.finish(self.number, start, end)
        for flight in self._flights():
            end = flight.position + flight.end - flight.first
            journal.requeue(self.number, flight.position, end, flight.attempts, 0)
        for again in [*self.again, *self._dying]:
            journal.requeue(self.number, again.position, again.position + again.number, again.attempts, 0)
        for later in self._later:
            journal.requeue(
                self.number, later.position, later.position + later.number, later.attempts, later.due
            )

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
        """Of what the topic has just passed on, these are for later."""
        for each in deferred:
            if each.position >= self.cursor.position:
                self.skipped.add(each.position, each.position + each.count)
                self._push_deferred(each.due, each.position, each.count, 0)

    def pass_over(self, start: int, end: int) -> None:
        """Drop [start, end), which the topic has not passed on yet."""
        if start < end:
            self.skipped.add(start, end)
            self.finished(start, end)
