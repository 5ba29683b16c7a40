"""The channels of a topic, and the line between the topic's own queue and theirs.

`pumped` is that line. What lies before it in the log has been passed on to the channels. What lies behind it
is the topic's own queue, which grows while there is no channel or the topic is paused. A channel begins at
the line, so the first one gets the backlog and a later one gets only what is new.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsquark.errors import LogDamaged
from nsquark.log import Deferred, Journal, Run, Segment, TopicLog
from nsquark.names import is_ephemeral
from nsquark.nsqd.options import Options
from nsquark.nsqd.stats.histogram import Histogram

from .publish import PendingPublishes
from .services import Services
from .topic_health import TopicHealth
from .topic_journal import TopicJournal

if TYPE_CHECKING:
    from .channel import Channel

logger = logging.getLogger(__name__)

DEFERRED_AT_ONCE = 250  # how many are passed on before others have a turn: about a millisecond


class TopicChannels:
    """A topic as its channels know it. Its log, its journal and what watches over them are the `Topic`'s."""

    name: str
    log: TopicLog
    journal: Journal
    journaling: TopicJournal
    health: TopicHealth
    pending: PendingPublishes

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._turn = services.turn
        self._problems = services.problems
        self.options: Options = services.options
        self.clock = services.turn.clock
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.channels: dict[str, Channel] = {}
        self.watchers: set[Callable[[], None]] = set()  # called when there is something new, and at the end
        self.gate = None if self.ephemeral else services.gate
        # Channels, or the topic itself, that are new and that the other members do not have yet.
        self.unconfirmed: set[object] = set()
        self.copied = 0  # up to here the members of the replica group have the log, where there is a gate
        self.pumped = 0
        self.passed_on = 0  # messages, to every channel there was
        self.paused = False
        self.starting = False  # its messages wait for the channels that nsqlookupds know of
        self.exiting = False
        self.active = True  # since it was last trimmed
        self.moves = 0  # of channels, to any position
        self.holds: dict[object, int] = {}  # by reader: the position from which on it wants the log kept
        self.delivery_times = Histogram()  # from its publish until it is first sent, once per channel
        self.needs_slow_path = True
        self._held: deque[Deferred] = deque()  # deferred, and behind `pumped`, by position
        self._listed: dict[Channel, None] = {}  # told of every message: a consumer may take it at once
        self._durable = 0  # channels
        self._next_number = 0

    def _update_slow_path(self) -> None:
        """Say whether a commit has more to do than to answer its publishers.

        Called wherever one of these changes. A topic that is only in memory may have grown too large with any
        commit.
        """
        self.needs_slow_path = bool(
            self.ephemeral
            or self.channels
            or self.watchers
            or self._held
            or self._problems
            or self.gate is not None
        )

    def problems_changed(self) -> None:
        """The node has its first problem, or its last one is gone."""
        self._update_slow_path()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` once: when there is something new, or at the end of the topic."""
        self.watchers.add(watcher)
        self._update_slow_path()

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self.watchers.discard(watcher)
        self._update_slow_path()

    def _tell_watchers(self) -> None:
        watchers = list(self.watchers)
        self.watchers.clear()
        self._update_slow_path()
        for watcher in watchers:
            watcher()

    def commit(self) -> None:
        """Store what was published since the last commit."""
        raise NotImplementedError

    def _make_channel(self, name: str, number: int, position: int) -> Channel:
        raise NotImplementedError

    # ---- passing on

    @property
    def visible_end(self) -> int:
        """Where channels and readers see the log end."""
        return self.log.end if self.gate is None else self.copied

    @property
    def depth(self) -> int:
        depth = self.log.end - self.pumped
        return depth - self.log.lost.count_from(self.pumped) if self.log.lost else depth

    @property
    def backend_depth(self) -> int:
        """How much of the depth is beyond --mem-queue-size, as for a channel."""
        return max(0, self.depth - self.options.mem_queue_size) if not self.ephemeral else 0

    def pump(self) -> None:
        """Pass everything on to the channels, if there are any and nothing holds the topic back.

        Only those channels are visited that have consumers which are ready: for the others `pumped` says it
        all. Every channel is told of deferred messages, so where there are very many of them, some are passed
        on now, and the rest in the turns that follow.
        """
        if self.paused or self.starting or self.exiting or not self.channels:
            return
        log = self.log
        before, end = self.pumped, log.end
        if self.gate is not None:
            end = self.copied
        if self._held:
            end = self._pass_deferred(end)
        number = end - before
        if number <= 0:  # less than 0: the topic was emptied of what the gate still holds
            return
        self.pumped = end
        if log.lost.count:
            number -= log.lost.count_from(before) - log.lost.count_from(end)
            for channel in self.channels.values():
                self._pass_lost(channel, before, end)
        self.passed_on += number
        silent = []
        for channel in self._listed:
            if channel.ready or channel.bounded:
                self._turn.ready(channel)
            else:
                silent.append(channel)
        for channel in silent:
            channel.listed = False
            del self._listed[channel]
        if not self._durable and not self.ephemeral:
            self.journal.pump(end)
            self.journaled()

    def _pass_deferred(self, end: int) -> int:
        """Tell the channels of the first deferred messages before `end`; returns how far they know now."""
        held, passed = self._held, list[Deferred]()
        most = max(1, DEFERRED_AT_ONCE // len(self.channels))
        while held and held[0].position < end:
            if len(passed) == most:
                self._turn.pumps(self)
                end = held[0].position
                break
            passed.append(held.popleft())
        if passed:
            for channel in self.channels.values():
                channel.hold_back(passed)
        self._update_slow_path()
        return end

    def _pass_lost(self, channel: Channel, start: int, end: int) -> None:
        """Finish for the channel what was lost of [start, end): no copy of it is left to deliver."""
        for first, stop in self.log.gaps(start):
            channel.pass_over(first, min(stop, end))

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
            channel.pass_emptied(self.pumped, self.log.end)
        self._held.clear()
        self._update_slow_path()
        self.pumped = self.log.end
        self.journal.pump(self.pumped)
        self.journaled()

    # ---- channels come and go

    def channel(self, name: str) -> Channel:
        """The channel of this name, created if it is not there."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._new_channel(name, self.pumped)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
            if not channel.ephemeral:
                self.journal.create(channel.number, name, self.pumped)
                self.journaled()
                if self.gate is not None:
                    self.journaling.flush()
                    self.unconfirmed.add(channel)
                    self.gate.then(partial(self.unconfirmed.discard, channel))
            self._services.changed(self.ephemeral or channel.ephemeral)
            self._services.announce(self.name, name)
            self.pump()
        return channel

    def _new_channel(self, name: str, position: int) -> Channel:
        channel = self._make_channel(name, self._next_number, position)
        self._next_number += 1
        self.channels[name] = channel
        self._update_slow_path()
        self._durable += not channel.ephemeral
        if channel.bounded:
            self.list_channel(channel)
        return channel

    def delete_channel(self, name: str) -> None:
        """Raises KeyError if there is none of this name."""
        channel = self.channels.pop(name)
        self._update_slow_path()
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

    # ---- for the channels

    def list_channel(self, channel: Channel) -> None:
        """Have this channel visited with every message, as long as it has consumers that are ready."""
        channel.listed = True
        self._listed[channel] = None

    def channel_ready(self, channel: Channel) -> None:
        """This channel may have something to deliver."""
        self._turn.ready(channel)

    def journaled(self) -> None:
        """The journal has records to write."""
        if not self.ephemeral:
            self._turn.journaled(self)

    def flush_journal(self) -> None:
        """Write the journal: the end of a turn in which there were records for it."""
        self.active = True
        self.journaling.flush()

    def now(self) -> int:
        """ns since the epoch."""
        return self.clock()

    def monotonic(self) -> int:
        """ns by a clock that is never set."""
        return self._turn.monotonic()

    def metadata_changed(self, ephemeral: bool) -> None:
        """What `nsqd.dat` says of a channel is no longer true."""
        self._services.changed(self.ephemeral or ephemeral)

    def moved(self) -> None:
        """A channel begins at another position, which may be a lower one."""
        self.moves += 1

    def wake_channel(self, channel: Channel, when: int) -> None:
        """Have the channel look at its deadlines, by the monotonic clock."""
        self._services.timers.schedule(channel, when)

    def wake_when_due(self, channel: Channel, due: int) -> None:
        """Have the channel look at its deferred messages, by the clock that counts from the epoch."""
        self._services.due_timers.schedule(channel.due_timer, due)

    def forget_channel(self, channel: Channel) -> None:
        self._services.timers.cancel(channel)
        self._services.due_timers.cancel(channel.due_timer)

    def bury(self, channel: Channel, run: Run, attempts: int) -> None:
        """Make dead letters of these messages."""
        self._services.dead_letters.bury(channel, run, attempts)

    def index_for(self, channel: Channel, segment: Segment) -> None:
        """Have an old file looked into, so that the channel can go on."""

        def indexed(error: Exception | None) -> None:
            if isinstance(error, LogDamaged):
                self.health.leave_out(error)
            if channel.exiting:
                return
            if isinstance(error, OSError):
                channel.cannot_read(error, self._turn.monotonic())
            self._turn.ready(channel)

        self._services.reads.index(segment, channel, indexed)
