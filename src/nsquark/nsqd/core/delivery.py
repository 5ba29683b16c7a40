"""How a channel delivers: it shares out what it owes among the consumers that have room.

First deliveries come off the log in runs, by the cursor. Requeued messages are read again, one range at a
time. Whatever is sent is in flight from then on, with its consumer. `channel` has what consumers answer.

There are two clocks, both in ns: `now` counts from the epoch and says when messages were published and are
due; `monotonic` is never set, and says when messages were delivered and time out.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from nsquark.errors import ArchiveAway, LogCorrupt, LogDamaged
from nsquark.kernel import Buffer, frame_ends, timestamps, with_attempts
from nsquark.log import NotIndexed, Run, Segment
from nsquark.nsqd.stats.latency import LatencyWindow

from .backlog import Backlog
from .consumer import Consumer
from .in_flight import Flight, new_flight

if TYPE_CHECKING:
    from .dead_lettering import DeadLettering
    from .topic import Topic

logger = logging.getLogger(__name__)

RETRY_NS = 1_000_000_000
MAX_RUNS = 128
MOST_NOTED = 10000  # deliveries
MOST_IDLE = 1000  # rounds
MOST_ROOM = 1 << 20  # messages: no run has as many, and a share of what is available fits a C integer


class ChannelDelivery(Backlog):
    """A backlog that is delivered to consumers."""

    dead_lettering: DeadLettering

    def __init__(self, topic: Topic, name: str, number: int, position: int) -> None:
        super().__init__(topic, name, number, position)
        self.delivery_times = topic.delivery_times  # from publish to first delivery
        self.max_attempts: int | None = None  # of this channel, where it is not --max-attempts
        self.max_runs = MAX_RUNS  # in one `deliver`, plus the rest of a round: others have their turn then
        self.ready: dict[Consumer, None] = {}  # consumers that may have room, in turn
        self.listed = False  # the topic visits the channel with new messages, while any consumer is `ready`
        self.paused = False
        self.exiting = False
        self.unreadable = False  # what comes next could not be read when it was last tried
        self.deliveries: list[tuple[int, int, Consumer]] | None = None  # (first id, end, consumer), if noted
        window = topic.options.e2e_processing_latency_window_time
        wanted = topic.options.e2e_processing_latency_percentile
        self.latency = LatencyWindow(round(window * 1e9), topic.now()) if wanted else None

    # ---- what the channel does for this by its topic

    def deliver_soon(self) -> None:
        """Have `deliver` called at the end of this turn."""
        raise NotImplementedError

    def listen(self) -> None:
        """Have the topic visit the channel with every new message, and set `listed`."""
        raise NotImplementedError

    def wake_at(self, monotonic: int) -> None:
        """Have the channel look at its deadlines then, or earlier."""
        raise NotImplementedError

    def index_first(self, segment: Segment) -> None:
        """Have an old file indexed in the background, and `deliver` called after that."""
        raise NotImplementedError

    # ---- consumers with room

    def offer(self, consumer: Consumer) -> bool:
        """Note the consumer as ready, if it has room. This is the only way into `ready`."""
        if consumer.room() <= 0:
            return False
        self.ready[consumer] = None
        if not self.listed:
            self.listen()
        return True

    def has_room(self, consumer: Consumer) -> None:
        """The consumer may take more than before: a higher RDY, or its socket takes data again."""
        if self.offer(consumer):
            self.deliver_soon()

    def release(self, consumer: Consumer, number: int) -> None:
        """`number` messages of the consumer are not in flight any more: their places are free."""
        self.in_flight_count -= number
        consumer.in_flight_count -= number
        if self.offer(consumer) and (self.cursor.position < self.topic.pumped or self.requeued.count):
            self.deliver_soon()

    # ---- sharing out

    def deliver(self, now: int, monotonic: int) -> None:
        """Send what there is to the consumers that have room."""
        if not self.paused and not self.exiting and self.ready:
            self._share_out(now, monotonic)
        if self.bounded:
            self._drop_excess()

    def _share_out(self, now: int, monotonic: int) -> None:
        """Consumers have their turn in rounds, and get runs in proportion to their room."""
        ready = self.ready
        available = self.queued_count()
        round_left = room = 0  # consumers that this round has not served, and their room
        idle = runs = 0
        leader: Consumer | None = None
        while ready and available > 0:
            consumer = _next_of(ready)
            if not round_left:
                if runs >= self.max_runs:
                    self.deliver_soon()
                    break
                round_left = len(ready)
                # With fewer messages than consumers there is no need to know their room.
                if 1 < round_left <= available:
                    room = _room_of(ready)
                    leader = consumer
            runs += 1
            free = min(consumer.room(), MOST_ROOM)
            del ready[consumer]
            round_left -= 1
            if free <= 0:
                continue
            want = min(free, available)
            if ready:
                share = max(room, free)
                want = 1 if available <= len(ready) else min(want, (available * free + share - 1) // share)
                room -= free
            try:
                sent = self._send(consumer, want, now, monotonic)
            except NotIndexed as error:
                self.offer(consumer)
                self.index_first(error.segment)
                return
            except OSError as error:
                self.offer(consumer)
                self.cannot_read(error, monotonic)
                return
            self.offer(consumer)
            if sent:
                available -= sent
                if self.unreadable:
                    self._can_read()
                continue
            # Nothing was sent, but the queue has changed: messages were lost, deferred, or passed over.
            before, available = available, self.queued_count()
            idle = idle + 1 if available >= before else 0
            if idle > MOST_IDLE:
                logger.error(
                    "channel %s:%s has a depth of %d and delivers nothing", self.topic.name, self.name, before
                )
                return
        if leader is not None and leader in ready:
            # Shares are rounded up: the consumer that was the first to gain by it is the last the next time.
            del ready[leader]
            ready[leader] = None

    def _send(self, consumer: Consumer, want: int, now: int, monotonic: int) -> int:
        """Send one run of at most `want` messages; returns how many, 0 when only the queue has changed."""
        if self.requeued.count:
            entry = self.requeued.first
            room = entry.mark - self.cursor.position
            if room <= 0 or self.fresh_count() <= 0:
                return self._send_requeued(consumer, want, monotonic)
            want = min(want, room)
        run = self._next_run(want)
        if run is None:
            return 0
        # The oldest message of the run speaks for all of it.
        self.delivery_times.observe(now - run.published, run.count)
        if consumer.sample_rate:
            self._send_sample(consumer, run, monotonic)
        else:
            self.send_run(consumer, run, run.frames, 1, monotonic, run.count == want)
        return run.count

    def send_run(
        self,
        consumer: Consumer,
        run: Run,
        frames: Buffer,
        attempts: int,
        monotonic: int,
        alone: bool = False,
    ) -> None:
        """Send a run: it is in flight from now on. `attempts` counts this delivery too."""
        number = run.count
        if consumer.channel is not self:
            # The consumer for which the run was read has left: the run is for another one.
            self.requeued.push(run.position, number, attempts - 1, self.cursor.position)
            return
        deadline = monotonic + consumer.msg_timeout_ns
        if deadline < consumer.next_deadline:
            self.wake_at(deadline)
        flight = new_flight(run.first_id, number, run.position, attempts, monotonic, deadline)
        if self.latency is not None:
            flight.published = timestamps(frames, run.first_id)
        consumer.add(flight)
        consumer.in_flight_count += number
        consumer.message_count += number
        self.in_flight_count += number
        if self.deliveries is not None:
            self._note_delivery(flight, consumer)
        consumer.put(frames, alone)

    def _note_delivery(self, flight: Flight, consumer: Consumer) -> None:
        if self.deliveries is not None and len(self.deliveries) < MOST_NOTED:
            self.deliveries.append((flight.first, flight.end, consumer))
        else:
            self.deliveries = None  # no command has asked for long

    def _send_sample(self, consumer: Consumer, run: Run, monotonic: int) -> None:
        """Send about the share of the run that the consumer wants; the rest is finished for the channel."""
        begin = 0
        for index, end in enumerate(frame_ends(run.frames)):
            position = run.position + index
            if random.randrange(100) > consumer.sample_rate:
                self.finished(position, position + 1)
            else:
                one = Run(position, 1, run.first_id + index, b"")
                self.send_run(consumer, one, run.frames[begin:end], 1, monotonic)
            begin = end

    def _send_requeued(self, consumer: Consumer, want: int, monotonic: int) -> int:
        """Send of the first requeued range, if the log still has it and it may be delivered once more."""
        requeued = self.requeued
        entry = requeued.first
        position, number, attempts = entry.position, entry.number, entry.attempts
        try:
            run = self.read_at(position, min(want, number))
        except LogDamaged as error:
            self.topic.health.leave_out(error)
            return 0
        except LogCorrupt as error:
            segment = self.topic.health.suspect(error)
            if segment is not None:
                raise NotIndexed(segment) from None
            logger.error("channel %s:%s lost message %d: %s", self.topic.name, self.name, position, error)
            run = None
        if run is None or run.position != position:
            # The log does not have it: a broken segment, or an ephemeral topic out of memory.
            gone = number if run is None else min(number, run.position - position)
            requeued.take(gone)
            self.finished(position, position + gone)
            return 0
        requeued.take(run.count)
        if self.is_worn_out(attempts):
            self.dead_lettering.send(run, attempts)
            return 0
        frames = with_attempts(run.frames, attempts + 1) if attempts else run.frames
        self.send_run(consumer, run, frames, attempts + 1, monotonic)
        return run.count

    def _drop_excess(self) -> None:
        """What does not fit into the memory of an ephemeral queue is dropped: the newest, as in NSQ."""
        excess = self.fresh_count() - self.topic.options.mem_queue_size
        if excess > 0:
            self.pass_over(self.topic.pumped - excess, self.topic.pumped)

    # ---- what cannot be read

    def cannot_read(self, error: OSError, monotonic: int) -> None:
        """The log cannot be read now. Nothing is lost, and a second from now is soon enough."""
        logger.error("channel %s:%s cannot read: %s", self.topic.name, self.name, error)
        self.unreadable = True
        if not isinstance(error, ArchiveAway):  # that is no fault of this node, which serves all others
            self.topic.health.broken(str(error), "read", self.name)
        self.wake_at(monotonic + RETRY_NS)

    def _can_read(self) -> None:
        self.unreadable = False
        self.topic.health.works("read", self.name)

    # ---- how often a message is delivered

    @property
    def attempts_limit(self) -> int:
        """How often a message is delivered before it becomes a dead letter; 0 for no limit."""
        if self.topic.keeps_dead_letters:
            return 0
        return self.topic.options.max_attempts if self.max_attempts is None else self.max_attempts

    def is_worn_out(self, attempts: int) -> bool:
        return 0 < self.attempts_limit <= attempts


def _next_of(ready: dict[Consumer, None]) -> Consumer:
    """The consumer whose turn it is. `next(iter(ready))`, and cheaper where it is compiled."""
    for consumer in ready:
        return consumer
    raise KeyError("no consumer is ready")


def _room_of(ready: dict[Consumer, None]) -> int:
    room = 0
    for consumer in ready:
        room += min(consumer.room(), MOST_ROOM)
    return room
