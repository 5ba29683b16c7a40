"""A channel: what it owes (`backlog`), to whom it gives it, and what they answer.

First deliveries come off the log in runs; what was delivered and is not finished is in flight, with its
consumer. Whatever comes back goes to the exceptions of the backlog.

Plain and synchronous: every method is atomic, and time is an argument. There are two clocks, both in ns:
`now` counts from the epoch and says when messages were published and are due; `monotonic` is never set, and
says when messages were delivered and time out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsquark import kernel
from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.kernel import Flight, Run
from nsquark.log import Cursor, NotIndexed, Ranges
from nsquark.nsqd.stats.latency import LatencyWindow

from .backlog import MAX_RUN_BYTES, Backlog
from .consumer import NEVER, Consumer
from .holders import Holders

if TYPE_CHECKING:
    from .topic import Topic

logger = logging.getLogger(__name__)

RETRY_NS = 1_000_000_000
LAST_DUE = (1 << 63) - 1  # ns since the epoch, as the log and the journal write it
WOKEN_AT_ONCE = 250  # entries whose time has come: about a millisecond


class DueTimer:
    """Wakes a channel when the first of its deferred messages is due, by the clock that can be set."""

    __slots__ = ("_channel", "wakes_at")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.wakes_at = NEVER

    def wake(self, now: int) -> None:
        self._channel.queue_due(now)


class Channel(Backlog):
    ready: dict[Consumer, None]
    latency: LatencyWindow | None

    def __init__(self, topic: Topic, name: str, number: int, position: int) -> None:
        super().__init__(topic, name, number, position)
        self.consumers: dict[Consumer, None] = {}
        self.requeue_count = 0
        self.timeout_count = 0
        self.dead_count = 0
        self.max_attempts: int | None = None  # of this channel, where it is not --max-attempts
        self.wakes_at = NEVER
        self.due_timer = DueTimer(self)
        self._passed_before = topic.passed_on
        self._holders: Holders | None = None
        self._searched = 0  # consumers, by `holder` while there are no `_holders`
        window = topic.options.e2e_processing_latency_window_time
        wanted = topic.options.e2e_processing_latency_percentile
        self.latency = LatencyWindow(round(window * 1e9), topic.now()) if wanted else None

    @property
    def message_count(self) -> int:
        """How many messages it has got of its topic."""
        return self.topic.passed_on - self._passed_before

    # ---- consumers

    def in_flight(self) -> Iterator[tuple[Consumer, Flight]]:
        for consumer in self.consumers:
            for flight in consumer.flights:
                yield consumer, flight

    def _flights_by_consumer(self) -> Iterator[list[Flight]]:
        for consumer in list(self.consumers):
            yield consumer.flights

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        consumer.outlet = self
        self.topic.intake.consumers += 1

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer leaves for good: what it had in flight goes to others at once.

        Without an outlet it has no room, whatever its connection goes on to say about it, so it never becomes
        ready again.
        """
        if consumer.outlet is not self:
            return
        for flight in self._detach(consumer):
            number = flight.end - flight.first
            self._give_back(flight.position, number, flight.attempts, self.cursor.position)
        self.topic.channel_ready(self)
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def _detach(self, consumer: Consumer) -> list[Flight]:
        """Forget the consumer; returns what it had in flight."""
        consumer.outlet = None
        del self.consumers[consumer]
        self.deliveries = self._holders = None
        self.ready.pop(consumer, None)
        self.topic.intake.consumers -= 1
        flights, consumer.flights = consumer.flights, []
        self.in_flight_count -= consumer.in_flight_count
        consumer.in_flight_count = 0
        return flights

    def set_ready(self, consumer: Consumer, number: int) -> None:
        consumer.ready_count = number
        if consumer.free > 0:
            self.has_room(consumer)
        else:
            self.ready.pop(consumer, None)  # less than no room would be taken off the others'

    def has_room(self, consumer: Consumer) -> None:
        """The consumer may take more than before: a higher RDY, or its socket takes data again."""
        if self.offer(consumer):
            self.topic.channel_ready(self)

    # ---- answers

    def finish_pieces(self, consumer: Consumer, first: int, end: int) -> list[int]:
        missing: list[int] = []
        expected = first
        for taken in consumer.take(first, end):
            missing.extend(range(expected, taken.first))
            number = taken.end - taken.first
            if self.latency is not None:
                self.latency.record(taken.published, taken.first, taken.end, self.topic.now())
            self.finished(taken.position, taken.position + number)
            consumer.finish_count += number
            self.landed(consumer, number)
            expected = taken.end
        missing.extend(range(expected, end))
        return missing

    def requeue(self, consumer: Consumer, message: int, delay_ns: int, now: int) -> bool:
        """Give an in-flight message back, deliverable after the delay. False if it is not in flight there.

        `attempts` stays as it is: it grows on delivery.
        """
        for taken in consumer.take(message, message + 1):
            due = min(now + delay_ns, LAST_DUE) if delay_ns > 0 else 0
            self._give_back(taken.position, 1, taken.attempts, self._end_of_queue(), due)
            if not due:
                self.topic.channel_ready(self)
            self.requeue_count += 1
            consumer.requeue_count += 1
            self.landed(consumer, 1)
            return True
        return False

    def touch(self, consumer: Consumer, message: int, max_timeout_ns: int, monotonic: int) -> bool:
        """Give the consumer more time for a message. False if it is not in flight there."""
        for taken in consumer.take(message, message + 1):
            taken.deadline = min(monotonic + consumer.msg_timeout_ns, taken.delivered + max_timeout_ns)
            consumer.add(taken)
            self.topic.wake_channel(self, taken.deadline)
            return True
        return False

    def holder(self, message: int) -> Consumer | None:
        """Which consumer has this message in flight.

        Once the consumers have been searched as often as there are flights, an index of those is cheaper.
        From then on deliveries are noted for it, until there are very many of them and nobody has asked.
        """
        if self.deliveries is None or self._holders is None or self._holders.outgrown:
            self.deliveries = self._holders = None
            self._searched += len(self.consumers)
            if self._searched <= sum([len(consumer.flights) for consumer in self.consumers]):
                return next((consumer for consumer in self.consumers if consumer.find(message)), None)
            self.deliveries, self._holders = [], Holders(self.consumers)
            self._searched = 0
        return self._holders.find(message, self.deliveries)

    # ---- time

    def wake(self, monotonic: int) -> None:
        """Take back what has timed out.

        Very many messages may have the same time: what is left of them comes when others had their turn.
        """
        room = WOKEN_AT_ONCE
        for consumer in self.consumers:
            if consumer.next_deadline > monotonic or room <= 0:
                continue
            late = consumer.overdue(monotonic, room)
            room -= len(late)
            number = sum(flight.end - flight.first for flight in late)
            for flight in late:
                size = flight.end - flight.first
                self._give_back(flight.position, size, flight.attempts, self._end_of_queue())
            if number:
                self.timeout_count += number
                self.landed(consumer, number)
        self.topic.channel_ready(self)
        first = min((consumer.next_deadline for consumer in self.consumers), default=NEVER)
        if first != NEVER:
            self.topic.wake_channel(self, first)

    def queue_due(self, now: int) -> None:
        """Queue what was deferred until now; of very many, some, and the rest when others had their turn."""
        room = WOKEN_AT_ONCE
        while room > 0 and self._later and self._later.first.due <= now:
            later = self._later.pop()
            self.again.push(later.position, later.number, later.attempts, self._end_of_queue())
            room -= 1
        self.topic.channel_ready(self)
        if self._later:
            self._wake_at(self._later.first.due)

    def _wake_at(self, due: int) -> None:
        self.topic.wake_when_due(self, due)

    # ---- the queue

    def _give_back(self, position: int, number: int, attempts: int, mark: int, due: int = 0) -> None:
        """What was in flight comes again, unless it has come often enough."""
        self._requeued(position, number, attempts, due)
        if self._is_worn_out(attempts):
            number -= (buried := self._bury_some(position, number, attempts))
            position += buried
        if due and number:
            self._push_deferred(due, position, number, attempts)
        elif number:
            self.again.push(position, number, attempts, mark)

    def deliver_rest(self, now: int, monotonic: int) -> None:
        ready = self.ready
        available = self.depth
        round_left = room = 0  # consumers of this round that have not been served, and their room
        leader: Consumer | None = None
        idle = runs = 0
        while ready and available > 0:
            if runs >= self.max_runs and not round_left:
                self.topic.channel_ready(self)
                break
            runs += 1
            if not round_left and 1 < (round_left := len(ready)) <= available:
                room = sum([consumer.free for consumer in ready])
                leader = next(iter(ready))
            consumer = next(iter(ready))
            free = consumer.free
            del ready[consumer]
            round_left -= 1
            if free <= 0:
                continue
            want = min(free, available)
            if ready:
                # With fewer messages than consumers there is no need to know their room.
                want = 1 if available <= len(ready) else min(want, -(-available * free // max(room, free)))
                room -= free
            try:
                sent = self._send(consumer, want, now, monotonic)
            except NotIndexed as error:  # an old file: somebody looks into it, and we come again after that
                self.offer(consumer)
                self.topic.index_for(self, error.segment)
                return
            except OSError as error:  # nothing is lost, and a second is soon enough
                self.offer(consumer)
                self.cannot_read(error, monotonic)
                return
            if not sent:
                # the queue has changed: something was lost, deferred, or passed over
                self.offer(consumer)
                before, available = available, self.depth
                idle = idle + 1 if available >= before else 0
                if idle > 1000:
                    logger.error(
                        "channel %s:%s has a depth of %d and delivers nothing",
                        self.topic.name,
                        self.name,
                        before,
                    )
                    return
                continue
            if self.unreadable:
                self.unreadable = False
                self.topic.works("read", self.name)
            available -= sent
            self.offer(consumer)
        if leader is not None and leader in ready:
            # Shares are rounded up: who was the first to gain by it is the last the next time.
            ready[leader] = ready.pop(leader)

    def cannot_read(self, error: OSError, monotonic: int) -> None:
        """The log cannot be read now."""
        logger.error("channel %s:%s cannot read: %s", self.topic.name, self.name, error)
        self.unreadable = True
        self.topic.broken(str(error), "read", self.name)
        self.topic.wake_channel(self, monotonic + RETRY_NS)

    def not_sent(self, run: Run, attempts: int) -> None:
        self.again.push(run.position, run.count, attempts, self.cursor.position)

    def _send(self, consumer: Consumer, want: int, now: int, monotonic: int) -> int:
        """Send one run of at most `want` messages; 0 when only the queue has changed."""
        if self.again:
            room = self.again.first.mark - self.cursor.position
            if room <= 0 or self._fresh <= 0:
                return self._send_again(consumer, want, monotonic)
            want = min(want, room)
        run = self._read(want)
        if run is None:
            return 0
        # the oldest of the run speaks for all of it
        self.delivery_times.observe(now - run.published, run.count)
        if consumer.sample_rate:
            return self._send_sample(consumer, run, monotonic)
        self.take_off(consumer, run, run.frames, 1, monotonic, run.count == want)
        return run.count

    def _read(self, want: int) -> Run | None:
        """The next run that the cursor is to deliver; None when it only moved."""
        cursor = self.cursor
        position = cursor.position
        if self.skipped:
            position = self.skipped.next_gap(position)
            cursor.seek(position)
            self.skipped.drop_below(position)
            bound = self.skipped.next_start(position)
            if bound is not None:
                want = min(want, bound - position)
        want = min(want, self.topic.pumped - position)
        if want <= 0:
            return None
        self.topic.active = True  # what the cursor has at hand now must be let go some time
        try:
            run = cursor.read(want, MAX_RUN_BYTES)
        except LogDamaged as error:
            self.topic.leave_out(error)
            return None
        except LogCorrupt as error:
            segment = self.topic.suspect(error)
            cursor.let_go()
            if segment is not None:
                raise NotIndexed(segment) from None
            self._lose(error)
            return None
        if run is None:
            return None
        if run.position > position:  # the log has let go of what lies between
            self.finished(position, run.position)
        if run.due:
            for start, end in self.skipped.gaps(run.position, run.position + run.count):
                self._push_deferred(run.due, start, end - start, 0)
            return None
        return run

    def lose(self, start: int, end: int) -> None:
        """These are not in the log any more: they are finished, but for those that are in flight."""
        self.cursor.let_go()
        end = min(end, self.topic.pumped)  # what the topic has not passed on yet, it will not
        if start >= end:
            return
        self.finished(start, end)
        for queue in (self.again, self._later, self._dying):
            queue.drop(start, end)
        if end > self.cursor.position:
            self.skipped.add(max(start, self.cursor.position), end)

    def _lose(self, error: LogCorrupt) -> None:
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

    def _send_again(self, consumer: Consumer, want: int, monotonic: int) -> int:
        again = self.again.first
        position, number, attempts = again.position, again.number, again.attempts
        try:
            run = self._read_again(position, min(want, number))
        except LogDamaged as error:
            self.topic.leave_out(error)
            return 0
        except LogCorrupt as error:
            segment = self.topic.suspect(error)
            if segment is not None:
                raise NotIndexed(segment) from None
            logger.error("channel %s:%s lost message %d: %s", self.topic.name, self.name, position, error)
            run = None
        if run is None or run.position != position:
            # gone from the log: a broken segment, or an ephemeral topic out of memory
            gone = number if run is None else min(number, run.position - position)
            self.again.take(gone)
            self.finished(position, position + gone)
            return 0
        self.again.take(run.count)
        if self._is_worn_out(attempts):
            self._bury(run, attempts)
            return 0
        frames = kernel.with_attempts(run.frames, attempts + 1) if attempts else run.frames
        self.take_off(consumer, run, frames, attempts + 1, monotonic)
        return run.count

    def _read_again(self, position: int, want: int) -> Run | None:
        return Cursor(self.topic.log, position, whatever_due=True).read(want, MAX_RUN_BYTES)

    def _send_sample(self, consumer: Consumer, run: Run, monotonic: int) -> int:
        """Send about the share of the run that the consumer wants; the rest is finished for the channel."""
        begin = 0
        for index, end in enumerate(kernel.frame_ends(run.frames)):
            position = run.position + index
            if random.randrange(100) > consumer.sample_rate:
                self.finished(position, position + 1)
            else:
                one = Run(position, 1, run.first_id + index, b"")
                self.take_off(consumer, one, run.frames[begin:end], 1, monotonic)
            begin = end
        return run.count

    def drop_excess(self) -> None:
        """What does not fit into the memory of an ephemeral queue is dropped: the newest, as in NSQ."""
        excess = self._fresh - self.topic.options.mem_queue_size
        if excess > 0:
            self.pass_over(self.topic.pumped - excess, self.topic.pumped)

    # ---- what operators do

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.topic.channel_ready(self)

    def empty(self) -> None:
        """Drop everything: queued, in flight, deferred."""
        self._begin_at(max(self.topic.pumped, self.cursor.position))

    def seek(self, position: int) -> None:
        """Finish everything before `position`, and deliver everything from there on, as for the first time.

        What is in flight is so no more. What was published to be delivered later still waits for its time.
        """
        self._later.drop(0, position)
        waiting = [each for each in self._later if not each.attempts]
        self._begin_at(position)
        for start, end in self.topic.log.gaps(position):
            self.pass_over(start, min(end, self.topic.pumped))
        for each in waiting:
            self.skipped.add(each.position, each.position + each.number)
            self._requeued(each.position, each.number, 0, each.due)
            self._push_deferred(each.due, each.position, each.number, 0)
        self.topic.channel_ready(self)

    def _begin_at(self, position: int) -> None:
        self.topic.moved()
        self.skipped = Ranges()
        for queue in (self.again, self._later, self._dying):
            queue.clear()
        self.in_flight_count = 0
        self.cursor.seek(position)
        for consumer in self.consumers:
            consumer.flights = []
            consumer.in_flight_count = 0
            self.has_room(consumer)
        if self.journal is not None:
            self.journal.move(self.number, position)
            self.topic.journaled()

    def commit(self, position: int) -> None:
        """Finish everything before `position`, whoever has it. Never goes back."""
        low = self.low()
        if low < position:
            self.discard(low, position)

    def discard(self, start: int, end: int) -> None:
        """Finish [start, end), whoever has it."""
        self.finished(start, end)
        for queue in (self.again, self._later, self._dying):
            queue.drop(start, end)
        for consumer in self.consumers:
            number = consumer.drop(start, end)
            if number:
                self.landed(consumer, number)
        cursor = self.cursor
        if end > cursor.position:
            self.skipped.add(max(start, cursor.position), end)
            cursor.seek(self.skipped.next_gap(cursor.position))
            self.skipped.drop_below(cursor.position)

    # ---- dead letters

    @property
    def attempts_limit(self) -> int:
        """How often a message is delivered before it becomes a dead letter; 0 for no limit."""
        if self.topic.keeps_dead_letters:
            return 0
        return self.topic.options.max_attempts if self.max_attempts is None else self.max_attempts

    def _is_worn_out(self, attempts: int) -> bool:
        return 0 < self.attempts_limit <= attempts

    def _bury_some(self, position: int, number: int, attempts: int) -> int:
        """Send these to the dead letters, as far as they can be read now; returns how many."""
        done = 0
        while done < number:
            try:
                run = self._read_again(position + done, number - done)
            except (LogCorrupt, NotIndexed, OSError):
                break  # their next delivery sees to that
            if run is None or run.position != position + done:
                break
            self._bury(run, attempts)
            done += run.count
        return done

    def _bury(self, run: Run, attempts: int) -> None:
        self._dying.push(run.position, run.count, attempts, 0)
        self.topic.bury(self, run, attempts)

    def buried(self, position: int, number: int) -> None:
        """These are among the dead letters, and on the disk there."""
        if self._leave_dying(position, number):
            self.finished(position, position + number)
            self.dead_count += number

    def not_buried(self, position: int, number: int, attempts: int, now: int) -> None:
        """That failed: they wait a little, and it is tried again."""
        if self._leave_dying(position, number):
            due = now + RETRY_NS
            self._requeued(position, number, attempts, due)
            self._push_deferred(due, position, number, attempts)

    def _leave_dying(self, position: int, number: int) -> bool:
        """False if they have been moved or dropped in the meantime."""
        before = self._dying.count
        self._dying.drop(position, position + number)
        return self._dying.count < before and not self.exiting

    def exit(self) -> None:
        """The channel is deleted, with all that it owes: its consumers are disconnected."""
        self.exiting = True
        self.deliveries = self._holders = None
        self.topic.forget_channel(self)
        self.topic.works("read", self.name)
        for queue in (self.again, self._later, self._dying):
            queue.clear()
        for consumer in list(self.consumers):
            self._detach(consumer)  # first: what it has in flight is deleted, not given back
            consumer.connection.abort()
