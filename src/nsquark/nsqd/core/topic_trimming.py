"""What a topic lets go of: segments that every channel has finished, memory, an overgrown journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsquark.log import Ranges, Segment

from .topic_channels import TopicChannels

if TYPE_CHECKING:
    from .channel import Channel

logger = logging.getLogger(__name__)

FEW = 1000  # unfinished messages of an ephemeral topic, which are looked through at any time


class TopicTrimming:
    """Looks at a topic now and then, and lets go of what no channel and no hold needs."""

    __slots__ = ("_delete", "_needed", "_topic")

    def __init__(self, topic: TopicChannels, delete: Callable[[Sequence[Path]], None]) -> None:
        """`delete` gets the files that are not needed any more."""
        self._topic = topic
        self._delete = delete
        self._needed = 0  # messages of an ephemeral topic, when its memory was last looked through

    def run(self, now: float) -> int:
        """All of `steps` at once. Returns the bytes of memory that were let go, about."""
        steps = self.steps(now)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return int(end.value)

    def steps(self, now: float) -> Generator[None, None, int]:
        """Trim, with pauses in which anything may happen. Raises OSError."""
        topic = self._topic
        log, journal = topic.log, topic.journal
        topic.active = False
        before = log.chunk_bytes
        for channel in list(topic.channels.values()):
            before += len(channel.cursor.data)
            if channel.cursor.rest():
                before -= len(channel.cursor.data)
                topic.active = True  # so that we come again
            yield
            if topic.exiting:  # its folder is gone, or another topic's
                return 0
        if topic.ephemeral:
            self._trim_memory_if_worth_it()
        elif log.trimmable or log.expires(now):
            yield from self._trim_segments(log.trim, now)
            if topic.exiting:
                return 0
        if journal.overgrown and journal.next_file is None:
            if journal.sound:
                yield from topic.journaling.rewriting()
            else:
                topic.journaling.rewrite()
        return max(0, before - log.chunk_bytes)

    def steps_of_files(self, now: float) -> Generator[None, None, None]:
        """Trim the files alone, with pauses in which anything may happen. Raises OSError."""
        topic = self._topic
        if not topic.exiting:
            yield from self._trim_segments(topic.log.trim_files, now)

    def _trim_segments(
        self, trim: Callable[[int, float], list[Segment]], now: float
    ) -> Generator[None, None, None]:
        """Delete the first segments, if every channel has finished them and no hold keeps them."""
        topic = self._topic
        log, moves, low = topic.log, topic.moves, topic.pumped
        unread: list[Channel] = []
        for channel in list(topic.channels.values()):
            if not log.lets_go_before(low, now):
                break  # whatever the others say
            if channel.exiting:
                continue
            if not channel.holds_log:
                unread.append(channel)
                continue
            # an ephemeral channel that is stuck may hold the two newest segments, not the disk
            low = min(low, max(channel.low(), log.recent if channel.ephemeral else 0))
            yield
            if topic.exiting:
                return
        if moves != topic.moves:
            low = log.first  # a channel that was asked already may have gone back
        for channel in unread:
            if channel.holds_log and not channel.exiting:  # it is read again
                low = min(low, channel.low())
        low = min([low, *topic.holds.values()])
        log.expire(low, now)
        segments = trim(low, now)
        for channel in unread:
            self._let_go(channel)
        for segment in segments:
            segment.close()
        if segments:
            self._delete([segment.path for segment in segments])

    @staticmethod
    def _let_go(channel: Channel) -> None:
        """Have a channel that is not read give up what is deleted, and say that the log is not kept."""
        if channel.exiting or channel.holds_log:
            return
        if not channel.readership.is_let_go:
            channel.readership.is_let_go = True
            logger.warning(
                "channel %s:%s: not read for %d s: the log is no longer kept for it (%d messages)",
                channel.topic.name,
                channel.name,
                channel.idle // 1_000_000_000,
                channel.unfinished,
            )
        channel.let_go()

    def _trim_memory_if_worth_it(self) -> None:
        """Look through all that is needed when there is half as much as the last time, or only a little."""
        topic = self._topic
        needed = topic.depth + sum(channel.unfinished for channel in topic.channels.values())
        if needed <= FEW or needed <= self._needed // 2 or topic.log.overfull:
            self._needed = needed
            self.trim_memory()

    def trim_memory(self) -> None:
        """Let go of every message of an ephemeral topic that all channels have finished."""
        topic = self._topic
        needed = Ranges()
        needed.add(topic.pumped, topic.log.end)
        for channel in topic.channels.values():
            channel.add_needed(needed)
        topic.log.keep(needed)
