"""A topic: what is published to it goes into its log, and from there to its channels.

A publish adds messages to the writer of the log. A commit stores everything that was added with one write,
settles the receipts of the publishers, and passes the messages on (`topic_channels`). Beside the topic stand
its journal (`topic_journal`), its health (`topic_health`) and its trimming (`topic_trimming`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from nsquark.kernel import Buffer
from nsquark.log import (
    Deferred,
    Inspected,
    InspectedJournal,
    Journal,
    JournalRecords,
    JournalState,
    Limits,
    Retention,
    TopicLog,
)
from nsquark.names import is_dead_topic
from nsquark.nsqd.stats.histogram import Histogram
from nsquark.wire import Mpub, Pubs

from .answers import Receipt, settle_all
from .backlog import SNAPSHOT_STEP
from .channel import LAST_DUE, Channel
from .commit_gate import CopiedAndSynced
from .publish import PendingPublishes
from .services import Services
from .topic_channels import TopicChannels
from .topic_health import TopicHealth
from .topic_journal import TopicJournal, all_deferred, restore_deferred
from .topic_trimming import TopicTrimming

logger = logging.getLogger(__name__)

# A publish of this size is worth a write of its own when only publishers wait: they are answered while others
# are still read. Where consumers wait, larger runs for all of them are worth more.
LARGE = 32 << 10
EXITING = "exiting"  # the reason to refuse what is published to a topic that is deleted
TOO_MUCH = 4 << 20  # bytes to keep in memory until the turn's end


class Topic(TopicChannels):
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
        super().__init__(services, name)
        options = services.options
        self.keeps_dead_letters = is_dead_topic(name)
        self.message_count = 0
        self.message_bytes = 0
        self.publish_times = Histogram()  # from its arrival until it is in the log
        self.sync_every = 0 if self.ephemeral else options.sync_every
        self.syncs_soon = False  # a sync is asked for and covers what is committed until then
        self.unsynced_receipts: list[Receipt] = []  # of what is committed and waits for fsync
        self._limits = Limits(
            options.max_bytes_per_file,
            options.mem_queue_size,
            options.retention_bytes,
            options.retention_time,
            options.archive_retention_bytes,
            options.archive_retention_time,
        )
        self.retention = Retention()
        found, found_journal = inspected or (None, None)
        node = services.node
        self.log = TopicLog(
            directory,
            self._limits,
            node.lease,
            node.floor,
            found,
            node.term,
            services.segment_store,
            partial(services.trim_files, self),
        )
        # Where the log began when it was new. The files tell only that it did not begin behind this position.
        self.origin: int = min(self.log.first, services.node.floor)
        try:
            self.journal = Journal(directory, found_journal, node.term)
        except BaseException:
            self.log.close(sync=False)  # its descriptor would never be closed
            raise
        published = partial(services.turn.published, self)
        # In a replica group no publisher is answered before the turn's frame is sent.
        large = LARGE if self.gate is None else TOO_MUCH
        self.pending = PendingPublishes(self.log.writer, published, self.commit, large, TOO_MUCH)
        self.publishing_changed()
        self.health = TopicHealth(services, name, self.log, self.journal, self.channels)
        self.journaling = TopicJournal(
            self.journal, self.snapshot, self.health, services.syncer, self.ephemeral
        )
        self.trimming = TopicTrimming(self, services.syncer.delete)
        self.health.tell_damage()
        self.pumped = self.copied = self.log.end
        known = self.journal.state.epoch
        self.epoch = int.from_bytes(os.urandom(8), "big") if known is None else known
        self._update_slow_path()

    def restore(self, channels: Sequence[str], paused: bool, now: int) -> None:
        """Take up the channels that the journal knows and those named, as a crash or a stop has left them."""
        log, state = self.log, self.journal.state
        self.paused = paused
        names = list(dict.fromkeys([*state.channels, *channels]))
        # Asked now, as the channels take the state over. A replica group's members get the whole journal.
        known_to_all = self.gate is None and not log.lost and not log.recovered
        used_on = known_to_all and self.journal.says_everything(log.end, names)
        self.health.tell_missing(state.end)
        # Without a journal, what is on the disk comes again: the archive may have years.
        stands = log.local_first if state.pumped is None else state.pumped
        stands = max(log.first, min(stands, log.end))
        if paused or not names:
            self.pumped = stands
        deferred = all_deferred(log, state.deferred, self.pumped)
        self._held.extend([each for each in deferred if each.position >= self.pumped])
        passed_on = [each for each in deferred if each.position < self.pumped]
        self._update_slow_path()
        for name in names:
            known = state.channels.get(name)
            # A channel that the journal does not know gets too much rather than too little.
            channel = self._new_channel(name, known.position if known else min(stands, self.pumped))
            if known is None:
                self._pass_lost(channel, channel.cursor.position, self.pumped)
                continue
            for start, end in log.gaps(known.position):
                known.finish(start, min(end, self.pumped))
            waiting = restore_deferred(known, passed_on)
            known.settle(log.end)
            known.position = max(known.position, log.first)
            channel.restore(known, waiting, now)
        self.journal.state = JournalState()  # the channels have it now, and go on from there
        if used_on:
            self.journal.use_on()
        else:
            self.journaling.rewrite()

    def begin_epoch(self) -> None:
        """Have readers know that messages which they have read may be others now."""
        self.epoch = int.from_bytes(os.urandom(8), "big")
        self.journaling.rewrite()

    def retain(self, retention: Retention) -> None:
        """Keep what this retention says, and what the flags say where it says nothing."""
        self.retention = retention
        self.log.limit(retention.apply_to(self._limits))

    def _make_channel(self, name: str, number: int, position: int) -> Channel:
        return Channel(self, name, number, position)

    # ---- publishing

    def publish_pubs(self, pubs: Pubs, receipt: Receipt) -> None:
        """Add a run of PUB commands; the receipt is settled when they are stored."""
        if self._refuses(receipt):
            return
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
            self.pending.added(receipt, size, now)

    def publish_mpub(self, mpub: Mpub, receipt: Receipt) -> None:
        """Add the messages of an MPUB; the receipt is settled when they are stored."""
        if self._refuses(receipt):
            return
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
            self.pending.added(receipt, size, now)

    def publish(self, bodies: Sequence[Buffer], defer: float, receipt: Receipt) -> None:
        """Add whole bodies, deliverable after `defer` seconds."""
        if self._refuses(receipt):
            return
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
            self._hold(Deferred(first, len(bodies), due))
        self.pending.added(receipt, size, now)

    def publish_reserved(self, mpub: Mpub, first_id: int, due: int, receipt: Receipt) -> None:
        """Add messages with ids that the log has reserved for them, deliverable from `due` (0: at once)."""
        first = self.log.end + self.log.pending
        now = self.clock()
        size = self.log.add_reserved(mpub.data, mpub.start, mpub.count, first_id, now, due)
        if due:
            self._hold(Deferred(first, mpub.count, due))
        self.pending.added(receipt, size, now)

    def publish_for(self, channel: Channel, bodies: Sequence[Buffer], receipt: Receipt) -> None:
        """Publish for one channel: all others pass it over. Stored at once."""
        self.commit()
        first = self.log.end
        self.publish(bodies, 0.0, receipt)
        self.commit()  # if it fails, nothing was added, and there is nothing to pass over
        for other in self.channels.values():
            if other is not channel:
                other.pass_over(first, self.log.end)

    def _refuses(self, receipt: Receipt) -> bool:
        """Whether too few members of the replica group are there to store what is published."""
        gate = self.gate
        if gate is None or not gate.refusing:
            return False
        receipt.settle(gate.refusing)
        return True

    def publishing_changed(self) -> None:
        """The replica group takes publishes from now on, or refuses them."""
        refused = self.gate is not None and bool(self.gate.refusing)
        self.pending.open = not (self.ephemeral or self.exiting or refused)

    def _admit(self, count: int) -> int:
        """How many of `count` messages an ephemeral topic has room for while no channel takes them.

        What does not fit is counted and dropped silently, as in NSQ.
        """
        if self.channels and not self.paused and not self.starting:
            return count
        room = max(0, min(count, self.options.mem_queue_size - self.depth - self.log.pending))
        self.message_count += count - room
        return room

    def _hold(self, deferred: Deferred) -> None:
        """These messages are to be delivered later."""
        self._held.append(deferred)
        self._update_slow_path()

    # ---- storing

    def commit(self) -> None:
        """Store what was published since the last commit, and answer the publishers."""
        log, pending = self.log, self.pending
        writer = log.writer
        if self.exiting or not writer.count:
            return
        first, size = log.end, writer.body_bytes
        receipts = pending.take_receipts()
        try:
            count = log.commit()
        except OSError as error:
            self._not_stored(error, first, receipts)
            return
        self.message_count += count
        self.message_bytes += size
        self.active = True
        now = self.clock()
        self.publish_times.observe(now - pending.since, count)
        if self.needs_slow_path or (log.unsynced >= self.sync_every and not self.syncs_soon):
            self._stored(first, receipts)
        else:
            settle_all(receipts)

    def _stored(self, first: int, receipts: list[Receipt]) -> None:
        """The slow path of a commit: everything from the position `first` on is stored."""
        if self.ephemeral and self.log.overfull:
            self.trimming.trim_memory()
        if self._problems:
            self._services.healthy()
        if self._held and self._held[-1].position >= first:
            self._journal_deferred(first)
        if self.gate is not None:
            self._wait_for_copies(receipts)
        elif self.sync_every == 1:
            self.unsynced_receipts += receipts
        elif self.pending.consumers:
            self._turn.stored(receipts)
        else:
            settle_all(receipts)
        if self.gate is None:
            self._show()
        if self.log.unsynced >= self.sync_every and not self.ephemeral and not self.syncs_soon:
            self._services.syncer.request(self)

    def _show(self) -> None:
        """Let channels and readers have what is new."""
        if self.channels:
            self.pump()
        if self.watchers:
            self._tell_watchers()

    def _wait_for_copies(self, receipts: list[Receipt]) -> None:
        """Answer and show what is stored once the other members of the replica group have it."""
        if self.sync_every == 1 and receipts:
            both: Receipt = CopiedAndSynced(receipts)
            self.unsynced_receipts.append(both)
            receipts = [both]
        self.gate.then(partial(self._copied_until, self.log.end, receipts))  # type: ignore[union-attr]

    def _copied_until(self, end: int, receipts: list[Receipt]) -> None:
        self.copied = max(self.copied, end)
        if not self.exiting:
            self._show()
        if self.pending.consumers:
            self._turn.stored(receipts)
        else:
            settle_all(receipts)

    def _journal_deferred(self, first: int) -> None:
        """The deferred messages from the position `first` on are in the log now: tell the journal."""
        new = []
        for deferred in reversed(self._held):
            if deferred.position < first:
                break
            new.append(deferred)
        for deferred in reversed(new):
            self.journal.defer(deferred)
        self.journaled()

    def _not_stored(self, error: OSError, first: int, receipts: list[Receipt]) -> None:
        """The log could not be written: nothing is stored from the position `first` on."""
        while self._held and self._held[-1].position >= first:
            self._held.pop()
        self._update_slow_path()
        self._refuse(error, receipts)

    def _refuse(self, error: OSError, receipts: list[Receipt]) -> None:
        """The disk refuses: an id could not be leased, or the log could not be written."""
        logger.error("topic %s: could not be stored: %s", self.name, error)
        self.health.broken(str(error))
        for receipt in receipts:
            receipt.settle(error.strerror or str(error))

    def take_receipts(self) -> list[Receipt]:
        """The publishers that wait for the disk; the caller settles them."""
        receipts = self.unsynced_receipts
        self.unsynced_receipts = []
        return receipts

    @property
    def synced(self) -> int:
        """Everything before this position is on the disk for sure."""
        return min(self.visible_end, self.log.end if self.ephemeral else self.log.end - self.log.unsynced)

    def snapshot(self, journal: JournalRecords) -> Iterator[None]:
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

    # ---- the end

    def close(self) -> None:
        """Store everything there is, in order: the end of the process.

        Raises OSError if the disk does not hold everything; the files are closed all the same.
        """
        errors = [self.settle(), self.journaling.close()]
        self.log.close(sync=False)
        for error in errors:
            if error is not None:
                raise error

    def settle(self) -> OSError | None:
        """Answer all publishers once everything is on the disk, or tell them otherwise: the process ends."""
        self.commit()
        failure = None
        if not self.ephemeral:
            try:
                self.log.sync()
            except OSError as error:
                self.health.failed_to("be synced", error, "fsync")
                failure = error
        receipts = self.take_receipts()
        if failure is None:
            settle_all(receipts)
        else:
            for receipt in receipts:
                receipt.settle(failure.strerror or str(failure))
        return failure

    def exit(self) -> None:
        """The topic is deleted: its channels go, and what was published and not stored is refused."""
        self.exiting = True
        self.pending.open = False
        self.health.topic_is_gone()
        self.journaling.topic_is_gone()
        for name in list(self.channels):
            self.delete_channel(name)
        for receipt in [*self.pending.take_receipts(), *self.take_receipts()]:
            receipt.settle(EXITING)
        self.log.close(sync=False)
        self.journal.close(sync=False)
        self._tell_watchers()
