"""A topic: its log, its channels, and the line between the two.

`pumped` is that line: what lies before it in the log has been passed on to the channels, what lies behind it
is the topic's own queue, which grows while there is no channel or the topic is paused. A channel begins at
the line, so the first one gets the backlog and a later one gets only what is new.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.kernel import Buffer, Committer, Intake, Receipt, settle_all
from nsquark.log import (
    ChannelState,
    Deferred,
    GatheredRecords,
    Inspected,
    InspectedJournal,
    Journal,
    JournalState,
    Limits,
    Ranges,
    Record,
    Run,
    Segment,
    TopicLog,
    acknowledge,
    replace_journal,
)
from nsquark.names import is_ephemeral
from nsquark.nsqd.stats.histogram import Histogram
from nsquark.wire import Mpub, Pubs

from .backlog import SNAPSHOT_STEP
from .channel import LAST_DUE, Channel
from .dead_letters import is_dead_topic

if TYPE_CHECKING:
    from nsquark.nsqd.options import Options

    from .services import Services

logger = logging.getLogger(__name__)

# A publish of this size is worth a write of its own when only publishers wait: they are answered while others
# are still read. Where consumers wait, larger runs for all of them are worth more.
LARGE = 32 << 10
EXITING = "exiting"  # the reason to refuse what is published to a topic that is deleted
TOO_MUCH = 4 << 20  # to keep in memory until the turn's end
DEFERRED_AT_ONCE = 250  # how many are passed on before others have a turn: about a millisecond
FEW = 1000


class Topic(Committer):
    log: TopicLog
    publish_times: Histogram  # from its arrival until it is in the log

    def __init__(
        self,
        services: Services,
        name: str,
        directory: Path | None,
        inspected: tuple[Inspected, InspectedJournal] | None = None,
    ) -> None:
        """Open a topic, new or from what `directory` holds (None: an ephemeral topic). Raises OSError.

        `inspected` is what is in the directory, if that is known.
        """
        options = services.options
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        self.watchers: set[Callable[[], None]] = set()  # called when there is something new, and at the end
        self._held: deque[Deferred] = deque()  # deferred, and behind `pumped`, by position
        self.passed_on = 0  # messages, to every channel there was
        self._listed: dict[Channel, None] = {}  # that are told of every message: somebody may take it at once
        self._durable = 0  # channels
        self._moves = 0  # of channels, to any place
        self._needed = 0  # messages of an ephemeral topic, when its memory was last looked through
        heeded = self.channels, self.watchers, self._held, services.problems
        # Of one that is only in memory every commit is of interest: it may have grown too large.
        sync_every = 0 if self.ephemeral else options.sync_every
        super().__init__(services.turn.clock, Histogram(), heeded, sync_every)
        self.keeps_dead_letters = is_dead_topic(name)
        self.options: Options = options
        self.paused = False
        self.starting = False  # its messages wait for the channels that nsqlookupds know of
        self.unsynced_receipts: list[Receipt] = []  # of what is committed and waits for fsync
        self.delivery_times = Histogram()  # from its publish until it is first sent, once per channel
        self.holds: dict[object, int] = {}  # who wants the log kept from which position on
        self._services = services
        self._next_number = 0
        limits = Limits(
            options.max_bytes_per_file,
            options.mem_queue_size,
            options.retention_bytes,
            options.retention_time,
        )
        found, found_journal = inspected or (None, None)
        self.log = TopicLog(directory, limits, services.node.lease, services.node.floor, found)
        published = partial(services.turn.published, self)
        self.intake = Intake(self.log.writer, published, self.commit, LARGE, TOO_MUCH)
        self.intake.open = not self.ephemeral
        try:
            self.journal = Journal(directory, found_journal)
        except BaseException:
            self.log.close(sync=False)  # its descriptor would never be closed
            raise
        self._tell_damage()
        self.pumped = self.log.end
        known = self.journal.state.epoch
        self.epoch = int.from_bytes(os.urandom(8), "big") if known is None else known

    def restore(self, channels: Sequence[str], paused: bool, now: int) -> None:
        """Take up the channels that the journal knows and those named, as a crash or a stop has left them."""
        state = self.journal.state
        self.paused = paused
        names = list(dict.fromkeys([*state.channels, *channels]))
        stands = self.log.first if state.pumped is None else state.pumped
        stands = max(self.log.first, min(stands, self.log.end))
        if paused or not names:
            self.pumped = stands
        deferred = self._all_deferred(state.deferred)
        self._held += [each for each in deferred if each.position >= self.pumped]
        for name in names:
            known = state.channels.get(name)
            # A channel that the journal does not know gets too much rather than too little.
            channel = self._new_channel(name, known.position if known else min(stands, self.pumped))
            if known is None:
                self._pass_lost(channel, channel.cursor.position, self.pumped)
                continue
            for each in deferred:
                self._restore_deferred(known, each)
            for start, end in self.log.gaps(known.position):
                known.finish(start, min(end, self.pumped))
            known.settle(self.log.end)
            known.position = max(known.position, self.log.first)
            channel.restore(known, now)
        self.journal.state = JournalState()  # the channels have it now, and go on from there
        self.rewrite_journal()

    def _all_deferred(self, journaled: list[Deferred]) -> list[Deferred]:
        """What the journal and the log know of deferred messages, each once and in order, cut at `pumped`.

        The log knows them by batch, the journal by publish, so that one may hold several of the other.
        """
        found, known = [], self.log.first
        left = [each for each in journaled if each.position not in self.log.lost]
        for each in sorted([*self.log.recovered, *left], key=attrgetter("position")):
            start, end = max(each.position, known), min(each.position + each.count, self.log.end)
            known = max(known, end)
            middle = max(start, min(self.pumped, end))
            found += [Deferred(a, b - a, each.due) for a, b in ((start, middle), (middle, end)) if a < b]
        return found

    def _restore_deferred(self, known: ChannelState, each: Deferred) -> None:
        if each.position >= self.pumped:
            return
        for position in range(max(each.position, known.position), each.position + each.count):
            if position not in known.passed:
                known.requeue(position, position + 1, 0, each.due)

    # ---- publishing

    def publish_pubs(self, pubs: Pubs, receipt: Receipt) -> None:
        """Add a run of PUB commands; the receipt is settled when they are stored."""
        count = pubs.count
        if self.ephemeral and (count := self._admit(count)) == 0:
            receipt.settle(None)
            return
        now = self.clock()
        try:
            size = self.log.add_pubs(pubs.data, pubs.start, count, pubs.length, now)
        except OSError as error:
            self._refuse(error, [receipt])
        else:
            self.intake.added(receipt, size, now)

    def publish_mpub(self, mpub: Mpub, receipt: Receipt) -> None:
        count = mpub.count
        if self.ephemeral and (count := self._admit(count)) == 0:
            receipt.settle(None)
            return
        now = self.clock()
        try:
            size = self.log.add_mpub(mpub.data, mpub.start, count, now)
        except OSError as error:
            self._refuse(error, [receipt])
        else:
            self.intake.added(receipt, size, now)

    def publish(self, bodies: Sequence[Buffer], defer: float, receipt: Receipt) -> None:
        """Add whole bodies, deliverable after `defer` seconds."""
        if self.ephemeral:
            bodies = bodies[: self._admit(len(bodies))]
        if not bodies:
            receipt.settle(None)
            return
        now = self.clock()
        due = min(now + round(defer * 1e9), LAST_DUE) if defer > 0 else 0
        first = self.log.end + self.log.pending
        try:
            size = self.log.add_bodies(list(bodies), now, due)
        except OSError as error:
            self._refuse(error, [receipt])
            return
        if due:
            self._held.append(Deferred(first, len(bodies), due))
        self.intake.added(receipt, size, now)

    def publish_reserved(self, mpub: Mpub, first_id: int, due: int, receipt: Receipt) -> None:
        """Add messages with ids that the log has reserved for them, deliverable from `due` (0: at once)."""
        first = self.log.end + self.log.pending
        now = self.clock()
        size = self.log.add_reserved(mpub.data, mpub.start, mpub.count, first_id, now, due)
        if due:
            self._held.append(Deferred(first, mpub.count, due))
        self.intake.added(receipt, size, now)

    def _admit(self, count: int) -> int:
        """How many of `count` messages an ephemeral topic has room for while nobody takes them off it.

        What does not fit is counted and dropped silently, as in NSQ.
        """
        if self.channels and not self.paused and not self.starting:
            return count
        room = max(0, min(count, self.options.mem_queue_size - self.depth - self.log.pending))
        self.message_count += count - room
        return room

    def stored(self, first: int, receipts: list[Receipt]) -> None:
        """Answer the publishers, and pass on to the channels what they have published."""
        if self.ephemeral and self.log.overfull:
            self._trim_memory()
        if self._services.problems:
            self._services.healthy()
        if self._held and self._held[-1].position >= first:
            new = []
            for deferred in reversed(self._held):
                if deferred.position < first:
                    break
                new.append(deferred)
            for deferred in reversed(new):
                self.journal.defer(deferred)
            self.journaled()
        if self.sync_every == 1:
            self.unsynced_receipts += receipts
        elif self.intake.consumers:
            self._services.turn.stored(receipts)
        else:
            settle_all(receipts)
        if self.channels:
            self.pump()
        if self.watchers:
            self._tell_watchers()
        if self.log.unsynced >= self.sync_every and not self.ephemeral and not self.syncs_soon:
            self._services.syncer.request(self)

    def failed(self, error: OSError, first: int, receipts: list[Receipt]) -> None:
        """The log could not be written."""
        while self._held and self._held[-1].position >= first:
            self._held.pop()
        self._refuse(error, receipts)

    def _tell_watchers(self) -> None:
        watchers = list(self.watchers)
        self.watchers.clear()
        for watcher in watchers:
            watcher()

    def publish_for(self, channel: Channel, bodies: Sequence[Buffer], receipt: Receipt) -> None:
        """Publish for one channel: all others pass it over. Stored at once."""
        self.commit()
        first = self.log.end
        self.publish(bodies, 0.0, receipt)
        self.commit()  # if it fails, nothing was added, and there is nothing to pass over
        for other in self.channels.values():
            if other is not channel:
                other.pass_over(first, self.log.end)

    def _refuse(self, error: OSError, receipts: list[Receipt]) -> None:
        """The disk refuses: an id could not be leased, or the log could not be written."""
        logger.error("topic %s: could not be stored: %s", self.name, error)
        self.broken(str(error))
        for receipt in receipts:
            receipt.settle(error.strerror or str(error))

    # ---- passing on

    @property
    def depth(self) -> int:
        depth = self.log.end - self.pumped
        return depth - self.log.lost.count_from(self.pumped) if self.log.lost else depth

    @property
    def backend_depth(self) -> int:
        return max(0, self.depth - self.log.tail_length) if not self.ephemeral else 0

    def pump(self) -> None:
        """Pass everything on to the channels, if there are any and nothing holds the topic back.

        Only those are visited that somebody listens to: for the others `pumped` says it all. Of deferred
        messages every channel is told, so where there are very many of them, some are passed on now, and the
        rest in the turns that follow.
        """
        if self.paused or self.starting or self.exiting or not self.channels:
            return
        before, end = self.pumped, self.log.end
        if self._held:
            end = self._pass_deferred(end)
        number = end - before
        if not number:
            return
        self.pumped = end
        if self.log.lost:
            number -= self.log.lost.count_from(before) - self.log.lost.count_from(end)
            for channel in self.channels.values():
                self._pass_lost(channel, before, end)
        self.passed_on += number
        turn = self._services.turn
        silent = []
        for channel in self._listed:
            if channel.ready or channel.bounded:
                turn.ready(channel)
            else:
                silent.append(channel)
        for channel in silent:
            channel.listed = False
            del self._listed[channel]
        if not self._durable and not self.ephemeral:
            self.journal.pump(self.pumped)
            self.journaled()

    def _pass_deferred(self, end: int) -> int:
        """Tell the channels of the first deferred messages before `end`; returns how far they know now."""
        held, passed = self._held, list[Deferred]()
        most = max(1, DEFERRED_AT_ONCE // len(self.channels))
        while held and held[0].position < end:
            if len(passed) == most:
                self._services.turn.pumps(self)
                end = held[0].position
                break
            passed.append(held.popleft())
        if passed:
            for channel in self.channels.values():
                channel.hold_back(passed)
        return end

    def list_channel(self, channel: Channel) -> None:
        """Have this channel visited with every message, as long as it has consumers that are ready."""
        channel.listed = True
        self._listed[channel] = None

    def channel(self, name: str) -> Channel:
        """The channel of this name, created if it is not there."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._new_channel(name, self.pumped)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
            if not channel.ephemeral:
                self.journal.create(channel.number, name, self.pumped)
                self.journaled()
            self._services.changed(self.ephemeral or channel.ephemeral)
            self._services.announce(self.name, name)
            self.pump()
        return channel

    def _new_channel(self, name: str, position: int) -> Channel:
        channel = Channel(self, name, self._next_number, position)
        self._next_number += 1
        self.channels[name] = channel
        self._durable += not channel.ephemeral
        if channel.bounded:
            self.list_channel(channel)
        return channel

    def _pass_lost(self, channel: Channel, start: int, end: int) -> None:
        """What was lost of [start, end) is finished for the channel: it owes nothing that nobody has."""
        for first, stop in self.log.gaps(start):
            channel.pass_over(first, min(stop, end))

    def delete_channel(self, name: str) -> None:
        """Raises KeyError if there is none of this name."""
        channel = self.channels.pop(name)
        logger.info("TOPIC(%s): deleting channel %s", self.name, name)
        self._durable -= not channel.ephemeral
        self._listed.pop(channel, None)
        channel.exit()
        self._services.announce(self.name, name)
        if not self.exiting:
            self.journal.pump(self.pumped)
            if not channel.ephemeral:
                self.journal.delete(channel.number)
            self.journaled()
            self._services.changed(self.ephemeral or channel.ephemeral)
            if self.ephemeral and not self.channels:
                self._services.delete_topic(self.name)

    def start(self) -> None:
        """Its first channels are there: let its messages flow."""
        self.starting = False
        self.pump()

    def pause(self) -> None:
        self.paused = True
        self.journal.pump(self.pumped)
        self.journaled()

    def unpause(self) -> None:
        self.paused = False
        self.pump()

    def empty(self) -> None:
        """Drop the topic's own queue; the channels keep theirs."""
        self.commit()
        for channel in self.channels.values():
            channel.pass_over(self.pumped, self.log.end)
        self._held.clear()
        self.pumped = self.log.end
        self.journal.pump(self.pumped)
        self.journaled()

    @property
    def synced(self) -> int:
        """Everything before this position is on the disk for sure."""
        return self.log.end - self.log.unsynced if not self.ephemeral else self.log.end

    # ---- for its channels

    def index_for(self, channel: Channel, segment: Segment) -> None:
        """Have an old file looked into, so that the channel can go on."""

        def indexed(error: Exception | None) -> None:
            if isinstance(error, LogDamaged):
                self.leave_out(error)
            if channel.exiting:
                return
            if isinstance(error, OSError):
                channel.cannot_read(error, self._services.turn.monotonic())
            self._services.turn.ready(channel)

        self._services.reads.index(segment, channel, indexed)

    def bury(self, channel: Channel, run: Run, attempts: int) -> None:
        self._services.dead_letters.bury(channel, run, attempts)

    def channel_ready(self, channel: Channel) -> None:
        self._services.turn.ready(channel)

    def wake_channel(self, channel: Channel, when: int) -> None:
        """Have the channel look at its deadlines, by the monotonic clock."""
        self._services.timers.schedule(channel, when)

    def wake_when_due(self, channel: Channel, due: int) -> None:
        """Have the channel look at its deferred messages, by the clock that counts from the epoch."""
        self._services.due_timers.schedule(channel.due_timer, due)

    def forget_channel(self, channel: Channel) -> None:
        self._services.timers.cancel(channel)
        self._services.due_timers.cancel(channel.due_timer)

    def journaled(self) -> None:
        if not self.ephemeral:
            self._services.turn.journaled(self)

    def now(self) -> int:
        """ns since the epoch."""
        return self.clock()

    def broken(self, reason: str, *what: str) -> None:
        """A file could not be written or read: the health of the process says so until that part `works`.

        Without a part it is the log that could not be written, which the next good write to any log clears.
        """
        if not what:
            self._services.unhealthy(reason)
        elif not self.exiting:  # else it goes with the topic
            self._services.unhealthy(reason, (self.name, *what))

    def failed_to(self, do: str, error: OSError, what: str) -> None:
        """Something failed that is tried again and again: it is logged when the reason is a new one."""
        if self.exiting:  # its files are gone, and nobody needs them
            return
        reason = str(error)
        if self._services.problems.get((self.name, what)) != reason:
            logger.error("topic %s could not %s: %s", self.name, do, reason)
        self.broken(reason, what)

    def works(self, *what: str) -> None:
        """This part is as it should be again, or gone."""
        if not self.exiting:  # else all of it is gone, and another may have its name
            self._services.healthy((self.name, *what))

    # ---- damage

    def _tell_damage(self) -> None:
        """Tell what was found wrong with the files when they were opened, and what is so still."""
        log, journal = self.log, self.journal
        for path, size in [*([log.cut] if log.cut is not None else []), *journal.torn]:
            logger.warning(
                "TOPIC(%s): cut off %d bytes at the end of %s: a torn write", self.name, size, path
            )
        for record in [*log.found, *journal.found]:
            logger.error("TOPIC(%s): %s", self.name, record)
        if journal.damaged:
            logger.error(
                "TOPIC(%s): the journal does not read: all that is in the log comes again", self.name
            )
        for record in self.damage:
            if record not in log.found and record not in journal.found:
                logger.warning("TOPIC(%s): not acknowledged: %s", self.name, record)
            self._tell_lost(record)

    def _tell_lost(self, record: Record) -> None:
        self.broken(f"topic {self.name}: {record}", "damage", record.path.name)

    @property
    def damage(self) -> list[Record]:
        """What was damaged, and nobody has acknowledged."""
        return [*self.log.records, *self.journal.records]

    def acknowledge(self) -> list[Record]:
        """An operator has seen the damage: it is told no more. For a thread. Raises OSError."""
        return [acknowledge(record) for record in self.damage]

    def acknowledged(self, records: Sequence[Record]) -> None:
        """These are, and the disk knows."""
        names = {record.path.stem for record in records}
        for known in (self.log.records, self.journal.records):
            for record in [each for each in known if each.path.stem in names]:
                known.remove(record)
                self.works("damage", record.path.name)

    def leave_out(self, error: LogDamaged) -> None:
        """A segment is damaged, and the damage is kept aside: go on without it."""
        segment = error.part
        assert isinstance(segment, Segment)
        for record in self.log.leave_out(segment):
            if not record.acknowledged:
                logger.error("TOPIC(%s): %s", self.name, record)
                self._tell_lost(record)
            for channel in self.channels.values():
                channel.lose(*record.lost)
        self.works("segment", str(segment.path))

    def suspect(self, error: LogCorrupt) -> Segment | None:
        """Have a segment verified that does not read as it was written; None if that would not help."""
        try:
            segment = self.log.suspect(error)
        except OSError:
            segment = None
        self.broken(str(error), "segment", error.segment)
        return segment

    # ---- the files

    def flush_journal(self) -> None:
        """Write the journal; if that fails, it is tried again within a second."""
        self._flush()

    def _flush(self) -> OSError | None:
        if self.exiting:
            return None
        self.active = True
        try:
            self.journal.flush()
        except OSError as error:
            self.journal_failed(error)
            return error
        if self._services.problems and self.journal.sound:
            self.works("journal")
        return None

    def journal_failed(self, error: OSError) -> None:
        self.failed_to("store its journal", error, "journal")

    def check_journal(self) -> None:
        """Raises OSError if the journal cannot be written, so that what it could not keep is not begun."""
        if not self.ephemeral:
            self.journal.pump(self.pumped)  # is true at any time
            self.store_journal()

    def store_journal(self) -> None:
        """Have the journal say everything that is true by now. Raises OSError, and is tried again later."""
        if self.ephemeral or self.exiting:
            return
        error = self._flush()
        if error is not None or not self.journal.complete:
            error = self._rewrite()
        if error is not None:
            raise error

    def rewrite_journal(self) -> None:
        """Begin a new journal with the present state; if that fails, it is tried again within a second."""
        if not self.ephemeral:
            self._flush()  # so that the old one is complete, should there be no new one
            self._rewrite()

    def _rewrite(self) -> OSError | None:
        try:
            fd, stale = self._write_snapshot()
        except OSError as error:
            self.journal_failed(error)
            return error
        self._replace_journal(fd, stale)
        return None

    def _replace_journal(self, fd: int, stale: Sequence[Path]) -> None:
        """Have the present file synced, by a descriptor that is closed then, and those before it deleted."""
        journal = self.journal
        generation = journal.generation

        def synced(error: OSError | None) -> None:
            if error is not None:
                journal.not_replaced(generation, stale)
                self.journal_failed(error)
            elif journal.sound:
                self.works("journal")

        self._services.syncer.sync_then_delete(fd, journal.path, stale, synced)

    def _write_snapshot(self) -> tuple[int, list[Path]]:
        journal = self.journal
        journal.begin()
        for _ in self._snapshot(journal):
            pass
        return journal.rewrite()

    def rewriting_journal(self) -> Iterator[None]:
        """`rewrite_journal`, with pauses in which anything may happen."""
        journal = self.journal
        self.flush_journal()
        try:
            copy = journal.begin_copy()
        except OSError as error:
            self._copy_failed(error)
            return
        gathered = GatheredRecords()
        gathered.snapshot(goes_on=True)
        for _ in self._snapshot(gathered):
            self.flush_journal()  # what happened before this piece stands before it
            copy.write_snapshot(gathered.block())
            yield
            if journal.next_file is not copy or self.exiting:
                return
            if copy.error is not None:
                self._copy_failed(copy.error)
                return
        gathered.snapshot(goes_on=False)
        copy.write_snapshot(gathered.block())

        def completed(error: OSError | None) -> None:
            error = error or copy.error
            if journal.next_file is not copy:
                return
            if error is not None:
                self._copy_failed(error)
            else:
                stale = journal.switch()
                try:
                    self._replace_journal(os.dup(journal.fd), stale)
                except OSError as failed:  # no descriptor is left: the next rewrite deletes them
                    journal.not_replaced(journal.generation, stale)
                    self.journal_failed(failed)

        try:
            fd = os.dup(copy.fd)
        except OSError as error:
            self._copy_failed(error)
        else:
            self._services.syncer.run_then(partial(copy.complete, fd), completed)

    def _snapshot(self, journal: Journal) -> Iterator[None]:
        """Add everything to the records of a journal; `Backlog.snapshot` says what may happen at a yield."""
        journal.identify(self.epoch)
        journal.pump(self.pumped)
        yield
        # Of what is not stored yet the journal is told when it is.
        held = iter([each for each in self._held if each.position < self.log.end])
        while deferred := list(islice(held, SNAPSHOT_STEP)):
            for each in deferred:
                journal.defer(each)
            yield
        for channel in list(self.channels.values()):
            for _ in channel.snapshot(journal):
                yield
                if channel.exiting:
                    break
            yield

    def _copy_failed(self, error: OSError) -> None:
        self.journal_failed(error)
        self.journal.give_up_copy()

    def trim(self, now: float) -> int:
        """Let go of what nobody needs. Called now and then. Returns the bytes of memory, about."""
        trimming = self.trimming(now)
        while True:
            try:
                next(trimming)
            except StopIteration as end:
                return int(end.value)

    def trimming(self, now: float) -> Generator[None, None, int]:
        """`trim`, with pauses in which anything may happen."""
        self.active = False
        before = self.log.chunk_bytes
        for channel in list(self.channels.values()):
            before += len(channel.cursor.data)
            if channel.cursor.rest():
                before -= len(channel.cursor.data)
                self.active = True  # so that we come again
            yield
            if self.exiting:  # its folder is gone, or another topic's
                return 0
        if self.ephemeral:
            self._trim_memory_if_worth_it()
        elif self.log.trimmable:
            moves, low = self._moves, self.pumped
            for channel in list(self.channels.values()):
                if low < self.log.segments[0].end:
                    break  # not even the first segment can go, whatever the others say
                if channel.exiting:
                    continue
                # an ephemeral channel that is stuck may hold the two newest segments, not the disk
                low = min(low, max(channel.low(), self.log.recent if channel.ephemeral else 0))
                yield
                if self.exiting:
                    return 0
            if moves != self._moves:
                low = self.log.first  # a channel that was asked already may have gone back
            segments = self.log.trim(min([low, *self.holds.values()]), now)
            if segments:
                for segment in segments:
                    segment.close()
                self._services.syncer.delete([segment.path for segment in segments])
        if self.journal.overgrown and self.journal.next_file is None:
            if self.journal.sound:
                yield from self.rewriting_journal()
            else:
                self.rewrite_journal()
        return max(0, before - self.log.chunk_bytes)

    def _trim_memory_if_worth_it(self) -> None:
        """Look through all that is needed when there is half as much as the last time, or only a little."""
        needed = self.depth + sum(channel.unfinished for channel in self.channels.values())
        if needed <= FEW or needed <= self._needed // 2 or self.log.overfull:
            self._needed = needed
            self._trim_memory()

    def moved(self) -> None:
        """A channel begins at another position, which may be a lower one."""
        self._moves += 1

    def _trim_memory(self) -> None:
        needed = Ranges()
        needed.add(self.pumped, self.log.end)
        for channel in self.channels.values():
            channel.add_needed(needed)
        self.log.keep(needed)

    def close(self) -> None:
        """Store everything there is, in order: the end of the process.

        Raises OSError if the disk does not hold everything; the files are closed all the same.
        """
        errors = [self.settle(), self._close_journal()]
        self.log.close(sync=False)
        for error in errors:
            if error is not None:
                raise error

    def _close_journal(self) -> OSError | None:
        if self.ephemeral:
            return None
        self._flush()
        try:
            try:
                fd, stale = self._write_snapshot()
            except OSError:
                self.journal.close()
                raise
            replace_journal(fd, self.journal.path, stale)
        except OSError as error:
            return error
        finally:
            self.journal.close(sync=False)
        return None

    def settle(self) -> OSError | None:
        """Answer everybody once everything is on the disk, or tell them otherwise: the process ends."""
        self.commit()
        failure = None
        if not self.ephemeral:
            try:
                self.log.sync()
            except OSError as error:
                self.failed_to("be synced", error, "fsync")
                failure = error
        receipts = self.take_receipts()
        if failure is None:
            settle_all(receipts)
        else:
            for receipt in receipts:
                receipt.settle(failure.strerror or str(failure))
        return failure

    def take_receipts(self) -> list[Receipt]:
        """Those who wait for the disk, to be settled by whoever takes them."""
        receipts, self.unsynced_receipts = self.unsynced_receipts, []
        return receipts

    def exit(self) -> None:
        """The topic is deleted: its channels go, and what was published and not stored is refused."""
        self.exiting = True
        self.intake.open = False
        for name in list(self.channels):
            self.delete_channel(name)
        receipts, self.intake.receipts = [*self.intake.receipts, *self.take_receipts()], []
        for receipt in receipts:
            receipt.settle(EXITING)
        self.log.close(sync=False)
        self.journal.close(sync=False)
        self._tell_watchers()
