"""A channel: its consumers, what they answer, and what time and operators do to it.

What the channel owes is the subject of `backlog`, and how it delivers that is the subject of `delivery`: a
channel is both. Here messages come back from consumers: finished, requeued, timed out, or dropped.

A channel is plain and synchronous: every method is atomic, and time is an argument.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsquark.kernel import Buffer, next_fins
from nsquark.log import Ranges, Segment

from .consumer import NEVER, Consumer
from .dead_lettering import DeadLettering
from .delivery import ChannelDelivery
from .holders import Holders
from .in_flight import Flight
from .readership import Readership

if TYPE_CHECKING:
    from .topic import Topic

logger = logging.getLogger(__name__)

LAST_DUE = (1 << 63) - 1  # ns since the epoch, as the log and the journal write it
WOKEN_AT_ONCE = 250  # entries whose time has come: about a millisecond
FIN_SIZE = 21  # bytes of the command


class DueTimer:
    """Wakes a channel when the first of its deferred messages is due, by the clock that can be set."""

    __slots__ = ("_channel", "wakes_at")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.wakes_at = NEVER

    def wake(self, now: int) -> None:
        self._channel.queue_due(now)


class Channel(ChannelDelivery):
    def __init__(self, topic: Topic, name: str, number: int, position: int) -> None:
        super().__init__(topic, name, number, position)
        self.dead_lettering = DeadLettering(self)
        self.requeue_count = 0
        self.timeout_count = 0
        self.dead_count = 0
        self.wakes_at = NEVER
        self.due_timer = DueTimer(self)
        self.readership = Readership(topic.monotonic())
        self._passed_before = topic.passed_on
        self._holders: Holders | None = None
        self._searched = 0  # consumers, by `holder` while there are no `_holders`

    @property
    def message_count(self) -> int:
        """How many messages the channel has got from its topic."""
        return self.topic.passed_on - self._passed_before

    # ---- what the topic does for its channel

    def deliver_soon(self) -> None:
        self.topic.channel_ready(self)

    def listen(self) -> None:
        self.topic.list_channel(self)

    def wake_at(self, monotonic: int) -> None:
        self.topic.wake_channel(self, monotonic)

    def wake_when_due(self, due: int) -> None:
        self.topic.wake_when_due(self, due)

    def index_first(self, segment: Segment) -> None:
        self.topic.index_for(self, segment)

    # ---- consumers

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.read_for(0)
        consumer.channel = self
        self.topic.pending.consumers += 1

    def remove_consumer(self, consumer: Consumer) -> None:
        """The consumer leaves for good: what it had in flight goes to others at once.

        A consumer without a channel has no room, whatever its connection says later: it is never ready again.
        """
        if consumer.channel is not self:
            return
        for flight in self._detach(consumer):
            self._give_back(flight, self.cursor.position, 0)
        self.deliver_soon()
        if self.ephemeral and not self.consumers:
            self.topic.delete_channel(self.name)

    def _detach(self, consumer: Consumer) -> list[Flight]:
        """Forget the consumer; returns what it had in flight."""
        consumer.channel = None
        del self.consumers[consumer]
        self.readership.read(self.topic.monotonic())
        self.deliveries = self._holders = None
        self.ready.pop(consumer, None)
        self.topic.pending.consumers -= 1
        flights, consumer.flights = consumer.flights, []
        self.in_flight_count -= consumer.in_flight_count
        consumer.in_flight_count = 0
        return flights

    def set_ready(self, consumer: Consumer, number: int) -> None:
        """RDY."""
        consumer.ready_count = number
        if consumer.room() > 0:
            self.has_room(consumer)
        else:
            self.ready.pop(consumer, None)  # a negative room would be taken off the others' shares

    # ---- answers

    def finish(self, consumer: Consumer, first: int, end: int) -> list[int]:
        """FIN of the ids [first, end). Returns those that the consumer did not have in flight."""
        count = end - first
        done = self.finish_front(consumer, first, count)
        return [] if done == count else self._finish_scattered(consumer, first + done, count - done)

    def finish_read(self, consumer: Consumer, data: Buffer, end: int) -> int:
        """Take the FINs with which data[:end] begins, as far as they finish what the consumer has first.

        Returns how many bytes those FINs are.
        """
        end = min(end, len(data))
        at = 0
        while at < end:
            first, count = next_fins(data, at, end)
            done = self.finish_front(consumer, first, count)
            at += FIN_SIZE * done
            if done == 0 or done < count:
                break
        return at

    def finish_front(self, consumer: Consumer, first: int, count: int) -> int:
        """Finish the ids from `first` on, `count` at most, while they are the first that the consumer has.

        Returns how many were: mostly all. Where latency is measured none are, since that needs every piece.
        """
        done = 0
        if self.latency is not None:
            return 0
        flights = consumer.flights
        while done < count and flights:
            flight = flights[0]
            if flight.first != first + done:
                break
            number = min(count - done, flight.count)
            self.finished(flight.position, flight.position + number)
            if number == flight.count:
                del flights[0]
            else:
                flight.drop_front(number)
            done += number
        if done:
            consumer.finish_count += done
            self.release(consumer, done)
        return done

    def _finish_scattered(self, consumer: Consumer, first: int, count: int) -> list[int]:
        """Finish ids from anywhere in the consumer's flights; returns those that are not there."""
        missing: list[int] = []
        for taken in consumer.take(first, count):
            if first < taken.first:
                missing.extend(range(first, taken.first))
            if self.latency is not None:
                self.latency.record(taken.published, taken.first, taken.end, self.topic.now())
            self.finished(taken.position, taken.position + taken.count)
            consumer.finish_count += taken.count
            self.release(consumer, taken.count)
            count -= taken.end - first
            first = taken.end
        missing.extend(range(first, first + count))
        return missing

    def requeue(self, consumer: Consumer, first: int, end: int, delay_ns: int, now: int) -> list[int]:
        """REQ of the ids [first, end): give them back, deliverable after the delay.

        Returns those that the consumer did not have in flight. `attempts` stays as it is: it grows on
        delivery.
        """
        missing: list[int] = []
        due = min(now + delay_ns, LAST_DUE) if delay_ns > 0 else 0
        mark = self.end_of_queue()
        number = 0
        for taken in consumer.take(first, end - first):
            if first < taken.first:
                missing.extend(range(first, taken.first))
            self._give_back(taken, mark, due)
            number += taken.count
            first = taken.end
        missing.extend(range(first, end))
        if number:
            if not due:
                self.deliver_soon()
            self.requeue_count += number
            consumer.requeue_count += number
            self.release(consumer, number)
        return missing

    def touch(self, consumer: Consumer, message: int, max_timeout_ns: int, monotonic: int) -> bool:
        """TOUCH: give the consumer more time for a message. False if it is not in flight there."""
        for taken in consumer.take(message, 1):
            taken.deadline = min(monotonic + consumer.msg_timeout_ns, taken.delivered + max_timeout_ns)
            consumer.add(taken)
            self.wake_at(taken.deadline)
            return True
        return False

    def _give_back(self, flight: Flight, mark: int, due: int) -> None:
        """What was in flight is requeued, or deferred until `due`, unless it was delivered often enough."""
        position, number, attempts = flight.position, flight.count, flight.attempts
        self.record_requeue(position, number, attempts, due)
        if self.is_worn_out(attempts):
            sent = self.dead_lettering.send_range(position, number, attempts)
            position += sent
            number -= sent
        if due and number:
            self.push_deferred(due, position, number, attempts)
        elif number:
            self.requeued.push(position, number, attempts, mark)

    def holder(self, message: int) -> Consumer | None:
        """Which consumer has this message in flight.

        Once the consumers have been searched as often as there are flights, an index of the flights is
        cheaper. From then on deliveries are noted for it, until there are very many and no command has asked.
        """
        if self.deliveries is None or self._holders is None or self._holders.outgrown:
            self.deliveries = self._holders = None
            self._searched += len(self.consumers)
            if self._searched <= sum([len(consumer.flights) for consumer in self.consumers]):
                for consumer in self.consumers:
                    if consumer.find(message):
                        return consumer
                return None
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
            number = sum([flight.count for flight in late])
            for flight in late:
                self._give_back(flight, self.end_of_queue(), 0)
            if number:
                self.timeout_count += number
                self.release(consumer, number)
        self.deliver_soon()
        first = min([consumer.next_deadline for consumer in self.consumers], default=NEVER)
        if first != NEVER:
            self.wake_at(first)

    def queue_due(self, now: int) -> None:
        """Queue what was deferred until now; of very many, some, and the rest when others had their turn."""
        room = WOKEN_AT_ONCE
        deferred = self.deferred
        while room > 0 and deferred and deferred.next_due <= now:
            due = deferred.pop()
            self.requeued.push(due.position, due.number, due.attempts, self.end_of_queue())
            room -= 1
        self.deliver_soon()
        if deferred:
            self.wake_when_due(deferred.next_due)

    # ---- what operators do

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.deliver_soon()

    def empty(self) -> None:
        """Drop everything: queued, in flight, deferred."""
        low, end = self.low(), max(self.topic.pumped, self.cursor.position)
        self._begin_at(end)
        self._note_emptied(low, end)

    def seek(self, position: int) -> None:
        """Move to another position. A reader of the log that commits to the channel is told of it."""
        self.begin_at(position)
        self._count_moves(self.moves + 1)

    def _count_moves(self, moves: int) -> None:
        self.moves = moves
        if self.journal is not None:
            self.journal.moves(self.number, moves)
            self.topic.journaled()

    def begin_at(self, position: int) -> None:
        """Finish everything before `position`, and deliver everything from there on, as for the first time.

        What is in flight is forgotten. What was published to be delivered later still waits for its time.
        """
        self.deferred.drop(0, position)
        waiting = [each for each in self.deferred if not each.attempts]
        self._begin_at(position)
        for start, end in self.topic.log.gaps(position):
            self.pass_over(start, min(end, self.topic.pumped))
        for each in waiting:
            self.skipped.add(each.position, each.position + each.number)
            self.defer(each.position, each.number, 0, each.due)
        self.deliver_soon()

    def _begin_at(self, position: int) -> None:
        self.topic.moved()
        self.skipped = Ranges()
        self.emptied = Ranges()
        self.forget_waiting()
        self.in_flight_count = 0
        self.cursor.seek(position)
        for consumer in self.consumers:
            consumer.flights = []
            consumer.in_flight_count = 0
            self.has_room(consumer)
        if self.journal is not None:
            self.journal.move(self.number, position)
            self.topic.journaled()

    def pass_emptied(self, start: int, end: int) -> None:
        """Drop [start, end), which the topic has not passed on and an operator has emptied."""
        self.pass_over(start, end)
        self._note_emptied(start, end)

    def _note_emptied(self, start: int, end: int) -> None:
        """Have a reader of the log told that an operator has emptied [start, end).

        Consumers need not be told: they get nothing but what is left.
        """
        if start < end and not self.consumers:
            self.emptied.drop_below(self.topic.log.first)
            self.emptied.add(start, end)
            if self.journal is not None:
                self.journal.emptied(self.number, start, end)
                self.topic.journaled()

    def commit(self, position: int, moves: int | None = None) -> bool:
        """Finish everything before `position`, whichever consumer has it. Never goes back.

        A reader that says how many `moves` it knows has no effect once an operator has moved the channel
        again: then the reader must follow, and False is returned.
        """
        if moves is not None and moves < self.moves:
            return False
        if moves is not None and moves > self.moves:  # the channel was deleted, or its journal lost
            self._count_moves(moves)
        low = self.low()
        if low < position:
            self.discard(low, position)
        self.emptied.drop_below(position)
        return True

    # ---- readership

    def read_for(self, duration: int) -> None:
        """A reader is there, and stays so many ns unless it says otherwise."""
        readership, topic = self.readership, self.topic
        if readership.is_saved:
            readership.is_saved = False
            topic.metadata_changed(self.ephemeral)
        if readership.is_let_go:
            readership.is_let_go = False
            logger.info("channel %s:%s is read again, and the log is kept for it", topic.name, self.name)
        readership.read(topic.monotonic() + duration)

    @property
    def idle(self) -> int:
        """For how many ns the channel has not been read; 0 while it is read."""
        return 0 if self.consumers else self.readership.idle(self.topic.monotonic())

    @property
    def hold_timeout(self) -> int:
        """For how many ns the log is kept for the channel while it is not read; 0 for ever.

        --channel-hold-timeout does not count for dead letters: those are not read until they are redelivered.
        """
        if self.readership.hold_timeout is not None:
            return self.readership.hold_timeout
        if self.topic.keeps_dead_letters:
            return 0
        return round(self.topic.options.channel_hold_timeout * 1e9)

    @property
    def holds_log(self) -> bool:
        """Whether the log is kept for the channel: it is read, or was read lately enough."""
        if self.consumers:
            return True
        return not self.readership.has_expired(self.hold_timeout, self.topic.monotonic())

    def let_go(self) -> None:
        """Give up what the log has no longer, after it was not kept for this channel."""
        first, start = self.topic.log.first, self.low()
        if start < first:
            logger.warning(
                "channel %s:%s: positions %d to %d are deleted unread, since the channel is not read",
                self.topic.name,
                self.name,
                start,
                first,
            )
            self.lose(start, first)

    def discard(self, start: int, end: int) -> None:
        """Finish [start, end), whichever consumer has it."""
        self.finished(start, end)
        self.drop_waiting(start, end)
        for consumer in self.consumers:
            number = consumer.drop(start, end)
            if number:
                self.release(consumer, number)
        cursor = self.cursor
        if end > cursor.position:
            self.skipped.add(max(start, cursor.position), end)
            cursor.seek(self.skipped.next_gap(cursor.position))
            self.skipped.drop_below(cursor.position)

    def exit(self) -> None:
        """The channel is deleted, with all that it owes: its consumers are disconnected."""
        self.exiting = True
        self.deliveries = self._holders = None
        self.topic.forget_channel(self)
        self.topic.health.works("read", self.name)
        self.forget_waiting()
        for consumer in list(self.consumers):
            self._detach(consumer)  # first: what it has in flight is deleted, not given back
            consumer.connection.abort()
