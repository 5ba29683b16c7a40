"""What is wrong with a topic: which of its parts fail, and what was damaged on its disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from nsquark.errors import LogCorrupt, LogDamaged
from nsquark.log import Journal, Record, Segment, TopicLog, acknowledge
from nsquark.nsqd.stats.health import WRITE, Thing

logger = logging.getLogger(__name__)


class NodeHealth(Protocol):
    """The health of the whole process, which `/ping` shows."""

    problems: dict[Thing, str]

    def healthy(self, what: Thing = WRITE) -> None: ...
    def unhealthy(self, reason: str, what: Thing = WRITE) -> None: ...


class LosingChannel(Protocol):
    """A channel, as far as damage concerns it."""

    def lose(self, start: int, end: int) -> None: ...


class TopicHealth:
    """Tells the node which part of a topic is broken, and when that part works again.

    Without a part it is the log that could not be written, which the next good write to any log clears.
    """

    __slots__ = ("_channels", "_gone", "_journal", "_log", "_name", "_node", "node_problems")

    def __init__(
        self,
        node: NodeHealth,
        name: str,
        log: TopicLog,
        journal: Journal,
        channels: Mapping[str, LosingChannel],
    ) -> None:
        self._node = node
        self.node_problems = node.problems  # of the whole process: the same dictionary all the time
        self._name = name
        self._log = log
        self._journal = journal
        self._channels = channels
        self._gone = False

    def topic_is_gone(self) -> None:
        """The topic is deleted: its problems went with it, and another topic may have its name."""
        self._gone = True

    def broken(self, reason: str, *what: str) -> None:
        """A file could not be written or read: the health of the process says so until that part `works`."""
        if not what:
            self._node.unhealthy(reason)
        elif not self._gone:
            self._node.unhealthy(reason, (self._name, *what))

    def failed_to(self, do: str, error: OSError, what: str) -> None:
        """Something failed that is tried again and again: it is logged when the reason is a new one."""
        if self._gone:
            return
        reason = str(error)
        if self.node_problems.get((self._name, what)) != reason:
            logger.error("topic %s could not %s: %s", self._name, do, reason)
        self.broken(reason, what)

    def works(self, *what: str) -> None:
        """This part is as it should be again, or does not exist any more."""
        if not self._gone:
            self._node.healthy((self._name, *what))

    # ---- damage

    @property
    def damage(self) -> list[Record]:
        """The damage that no operator has acknowledged yet."""
        return [*self._log.records, *self._journal.records]

    def tell_damage(self) -> None:
        """Log what was found wrong with the files when they were opened, and tell what is so still."""
        log, journal, name = self._log, self._journal, self._name
        for path, size in [*([log.cut] if log.cut is not None else []), *journal.torn]:
            logger.warning("TOPIC(%s): cut off %d bytes at the end of %s: a torn write", name, size, path)
        for record in [*log.found, *journal.found]:
            logger.error("TOPIC(%s): %s", name, record)
        for path, why in log.files.unread if log.files is not None else ():
            logger.error("TOPIC(%s): %s does not say what the archive has: %s", name, path, why)
        if journal.damaged:
            logger.error("TOPIC(%s): the journal does not read: all that is in the log comes again", name)
        elif not journal.generation and log.first < log.end:
            logger.warning("TOPIC(%s): there is no journal: all that is in the log comes again", name)
        for record in self.damage:
            if record not in log.found and record not in journal.found:
                logger.warning("TOPIC(%s): not acknowledged: %s", name, record)
            self._tell_lost(record)

    def tell_missing(self, known: int) -> None:
        """Log that the journal knows positions up to `known`, if the log ends before."""
        end = self._log.end
        if known > end:
            logger.warning(
                "TOPIC(%s): the log ends at position %d, and its journal knows messages up to %d: "
                "the last %d were not on the disk, or their file is gone",
                *(self._name, end, known, known - end),
            )

    def _tell_lost(self, record: Record) -> None:
        self.broken(f"topic {self._name}: {record}", "damage", record.path.name)

    def acknowledge(self) -> list[Record]:
        """An operator has seen the damage: it is told no more. For a thread. Raises OSError."""
        return [acknowledge(record) for record in self.damage]

    def acknowledged(self, records: Sequence[Record]) -> None:
        """These records of damage are acknowledged, and the disk knows."""
        names = {record.path.stem for record in records}
        for known in (self._log.records, self._journal.records):
            for record in [each for each in known if each.path.stem in names]:
                known.remove(record)
                self.works("damage", record.path.name)

    def leave_out(self, error: LogDamaged) -> None:
        """A segment is damaged, and the damage is kept aside: the topic goes on without it."""
        segment = error.part
        assert isinstance(segment, Segment)
        for record in self._log.leave_out(segment):
            if not record.acknowledged:
                logger.error("TOPIC(%s): %s", self._name, record)
                self._tell_lost(record)
            for channel in self._channels.values():
                channel.lose(*record.lost)
        if segment.store is not None:
            logger.warning("TOPIC(%s): %s; the archive has all of it", self._name, error)
        self.works("segment", error.segment)

    def suspect(self, error: LogCorrupt) -> Segment | None:
        """Have a segment verified that does not read as it was written; None if that would not help."""
        try:
            segment = self._log.suspect(error)
        except OSError:
            segment = None
        if segment is not None and segment.store is not None:
            logger.warning("TOPIC(%s): %s; it is fetched from the archive once more", self._name, error)
        else:
            self.broken(str(error), "segment", error.segment)
        return segment
