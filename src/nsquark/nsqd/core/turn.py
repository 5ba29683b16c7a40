"""The end of a turn of the event loop: where the work of all connections meets.

Connections add messages to topics and free their places in channels; what follows from that is done once for
all of them when the loop has read every socket that had something: the topics commit (one write each), the
channels deliver, the publishers get their answers, the journals are written. Messages go before answers, for
how late a message is counts for more.

Where very many channels have something to deliver, their topics take turns, and what is not done within
`DELIVERY_NS` is left for the next turn: others have been read from by then.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from .answers import Receipt, settle_all

logger = logging.getLogger(__name__)

DELIVERY_NS = 1_500_000
FEW_CHANNELS = 16  # all of them deliver, however long it takes


class Topic(Protocol):
    """A topic as the turn knows it."""

    @property
    def name(self) -> str: ...
    def commit(self) -> None: ...
    def pump(self) -> None: ...
    def flush_journal(self) -> None: ...


class Channel(Protocol):
    """A channel as the turn knows it."""

    @property
    def name(self) -> str: ...
    @property
    def topic(self) -> Topic: ...
    def deliver(self, now: int, monotonic: int) -> None: ...


class Turn:
    def __init__(
        self,
        schedule: Callable[[Callable[[], None]], object],
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`schedule` is the event loop's call_soon, or anything else that runs the callback later.

        `clock` counts ns since the epoch, `monotonic` those of a clock that is never set.
        """
        self._schedule = schedule
        self.clock = clock
        self.monotonic = monotonic
        self.scheduled = False  # `run` will be called
        self._queued = False  # and the event loop has it in its queue
        self._topics: dict[Topic, None] = {}
        self._channels: dict[Channel, None] = {}
        self._journals: dict[Topic, None] = {}
        self._stored: list[Receipt] = []
        self._pumps: dict[Topic, None] = {}
        # Called at the end of each turn: the primary of a replica group sends what was written.
        self.send_copies: Callable[[], None] | None = None
        # What the time did not suffice for. In order, and quick to take the first from: a dict is not.
        self._left: OrderedDict[Topic, OrderedDict[Channel, None]] = OrderedDict()

    def published(self, topic: Topic) -> None:
        """This topic has messages to commit."""
        self._topics[topic] = None
        if not self.scheduled:
            self._wake()

    def ready(self, channel: Channel) -> None:
        """This channel may have something to deliver."""
        self._channels[channel] = None
        if not self.scheduled:
            self._wake()

    def pumps(self, topic: Topic) -> None:
        """This topic has more to pass on to its channels."""
        self._pumps[topic] = None
        if not self.scheduled:
            self._wake()

    def stored(self, receipts: list[Receipt]) -> None:
        """These publishes are stored, and their answers may go behind what is delivered."""
        self._stored += receipts
        self._wake()

    def journaled(self, topic: Topic) -> None:
        """This topic's journal has records to write."""
        self._journals[topic] = None
        if not self.scheduled:
            self._wake()

    def copies_wait(self) -> None:
        """There is something to send to the other members of the replica group."""
        if not self.scheduled:
            self._wake()

    def _wake(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            # One call at most: two that leave work behind would each ask for another, and so on for ever.
            if not self._queued:
                self._queued = True
                self._schedule(self._run_queued)

    def _run_queued(self) -> None:
        self._queued = False
        self.run()

    def hold(self) -> None:
        """`run` will be called soon: it need not be scheduled."""
        self.scheduled = True

    def run(self) -> None:
        """Do everything that is due. Safe to call at any time; what fails is logged and fails alone."""
        if self._topics:
            topics, self._topics = self._topics, {}
            for topic in topics:
                try:
                    topic.commit()
                except Exception:
                    logger.exception("topic %s could not commit", topic.name)
        if self._pumps:
            pumps, self._pumps = self._pumps, {}
            for topic in pumps:
                try:
                    topic.pump()
                except Exception:
                    logger.exception("topic %s could not pass on its messages", topic.name)
        if self._channels or self._left:
            now, monotonic = self.clock(), self.monotonic()
            channels, self._channels = self._channels, {}
            if len(channels) > FEW_CHANNELS or self._left:
                self._take_turns(channels, now, monotonic)
            else:
                for channel in channels:
                    try:
                        channel.deliver(now, monotonic)
                    except Exception:
                        logger.exception("channel %s:%s could not deliver", channel.topic.name, channel.name)
        if self._stored:
            stored, self._stored = self._stored, []
            try:
                settle_all(stored)
            except Exception:
                logger.exception("a publish could not be answered")
        if self._journals:
            journals, self._journals = self._journals, {}
            for topic in journals:
                try:
                    topic.flush_journal()
                except Exception:
                    logger.exception("topic %s could not write its journal", topic.name)
        if self.send_copies is not None:
            try:
                self.send_copies()
            except Exception:
                logger.exception("what was written could not be sent to the other members")
        self.scheduled = False
        if self._topics or self._channels or self._left or self._journals or self._stored or self._pumps:
            self._wake()

    def _take_turns(self, channels: dict[Channel, None], now: int, monotonic: int) -> None:
        """Let these channels and those left deliver, one of each topic in turn, as far as the time goes."""
        left = self._left
        for channel in channels:
            left.setdefault(channel.topic, OrderedDict())[channel] = None
        until = monotonic + DELIVERY_NS
        while left:
            topic, waiting = left.popitem(last=False)
            channel, _ = waiting.popitem(last=False)
            if waiting:
                left[topic] = waiting
            try:
                channel.deliver(now, monotonic)
            except Exception:
                logger.exception("channel %s:%s could not deliver", topic.name, channel.name)
            if self.monotonic() >= until:
                return
