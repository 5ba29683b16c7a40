"""The journal of a topic: when it is written, when it begins anew, and what follows if the disk refuses.

What goes into a journal is known to the topic and its channels (`snapshot`), how it is laid out to
`nsquark.log.Journal`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from nsquark.log import ChannelState, Deferred, Journal, JournalRecords, TopicLog, replace_journal

from .topic_health import TopicHealth


class JournalSyncer(Protocol):
    """Brings files to the disk in a thread of its own."""

    def sync_then_delete(
        self, fd: int, path: Path, stale: Sequence[Path], done: Callable[[OSError | None], None]
    ) -> None: ...
    def run_then(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None: ...


class TopicJournal:
    """Writes the journal of one topic, and begins it anew when it has grown or could not be written."""

    __slots__ = ("_gone", "_health", "_in_memory", "_journal", "_snapshot", "_syncer")

    def __init__(
        self,
        journal: Journal,
        snapshot: Callable[[JournalRecords], Iterator[None]],
        health: TopicHealth,
        syncer: JournalSyncer,
        in_memory: bool,
    ) -> None:
        """`snapshot` adds the whole state of the topic to a journal's records.

        An ephemeral topic is `in_memory`: its journal is never written.
        """
        self._journal = journal
        self._snapshot = snapshot
        self._health = health
        self._syncer = syncer
        self._in_memory = in_memory
        self._gone = False

    def topic_is_gone(self) -> None:
        """Delete the journal, because its topic is deleted."""
        self._gone = True

    def flush(self) -> OSError | None:
        """Write the journal; if that fails, it is tried again within a second."""
        if self._gone:
            return None
        if self._journal.from_before:
            return self._rewrite() if self._journal.dirty else None
        try:
            self._journal.flush()
        except OSError as error:
            self.failed(error)
            return error
        if self._health.node_problems and self._journal.sound:
            self._health.works("journal")
        return None

    def failed(self, error: OSError) -> None:
        self._health.failed_to("store its journal", error, "journal")

    def check(self, pumped: int) -> None:
        """Raises OSError if the journal cannot be written, so that what it could not keep is not begun."""
        if not self._in_memory:
            self._journal.pump(pumped)  # is true at any time
            self.store()

    def store(self) -> None:
        """Have the journal say everything that is true by now. Raises OSError, and is tried again later."""
        if self._in_memory or self._gone:
            return
        error = self.flush()
        if error is not None or not self._journal.complete:
            error = self._rewrite()
        if error is not None:
            raise error

    def close(self) -> OSError | None:
        """Write a last journal, synced; returns why the disk does not hold it. The files are closed."""
        if self._in_memory:
            return None
        self.flush()
        try:
            try:
                fd, stale = self._write_snapshot()
            except OSError:
                self._journal.close()
                raise
            replace_journal(fd, self._journal.path, stale)
        except OSError as error:
            return error
        finally:
            self._journal.close(sync=False)
        return None

    # ---- beginning anew

    def rewrite(self) -> None:
        """Begin a new journal with the present state; if that fails, it is tried again within a second."""
        if not self._in_memory:
            self.flush()  # so that the old one is complete, should there be no new one
            self._rewrite()

    def _rewrite(self) -> OSError | None:
        try:
            fd, stale = self._write_snapshot()
        except OSError as error:
            self.failed(error)
            return error
        self._replace(fd, stale)
        return None

    def _write_snapshot(self) -> tuple[int, list[Path]]:
        journal = self._journal
        journal.begin()
        for _ in self._snapshot(journal):
            pass
        return journal.rewrite()

    def _replace(self, fd: int, stale: Sequence[Path]) -> None:
        """Have the present file synced, by a descriptor that is closed then, and those before it deleted."""
        journal = self._journal
        generation = journal.generation

        def synced(error: OSError | None) -> None:
            if error is not None:
                journal.not_replaced(generation, stale)
                self.failed(error)
            elif journal.sound:
                self._health.works("journal")

        self._syncer.sync_then_delete(fd, journal.path, stale, synced)

    def rewriting(self) -> Iterator[None]:
        """`rewrite`, with pauses in which anything may happen: the next file is written beside this one."""
        journal = self._journal
        self.flush()
        try:
            copy = journal.begin_copy()
        except OSError as error:
            self._copy_failed(error)
            return
        gathered = JournalRecords()
        gathered.snapshot(goes_on=True)
        for _ in self._snapshot(gathered):
            self.flush()  # what happened before this piece stands before it
            copy.write_snapshot(gathered.block())
            yield
            if journal.next_file is not copy or self._gone:
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
                self._switch()

        try:
            fd = os.dup(copy.fd)
        except OSError as error:
            self._copy_failed(error)
        else:
            self._syncer.run_then(partial(copy.complete, fd), completed)

    def _switch(self) -> None:
        """Go on with the next file, which is complete and on the disk."""
        journal = self._journal
        stale = journal.switch()
        try:
            self._replace(os.dup(journal.fd), stale)
        except OSError as failed:  # no descriptor is left: the next rewrite deletes the stale files
            journal.not_replaced(journal.generation, stale)
            self.failed(failed)

    def _copy_failed(self, error: OSError) -> None:
        self.failed(error)
        self._journal.give_up_copy()


def all_deferred(log: TopicLog, journaled: list[Deferred], pumped: int) -> list[Deferred]:
    """What the journal and the log know of deferred messages, each once and in order, cut at `pumped`.

    The log knows them by batch, the journal by publish, so that one may hold several of the other.
    """
    found, known, log_end = [], log.first, log.end
    left = [each for each in journaled if each.position not in log.lost] if log.lost else journaled
    for each in sorted([*log.recovered, *left], key=attrgetter("position")):
        start, end = each.position, each.position + each.count
        if end <= known:
            continue
        if known <= start and end <= log_end and not start < pumped < end:  # there may be a million of these
            found.append(each)
            known = end
            continue
        start, end = max(start, known), min(end, log_end)
        known = max(known, end)
        middle = max(start, min(pumped, end))
        found += [Deferred(a, b - a, each.due) for a, b in ((start, middle), (middle, end)) if a < b]
    return found


def restore_deferred(state: ChannelState, deferred: Iterable[Deferred]) -> list[Deferred]:
    """Deferred messages that were passed on to a channel wait there, unless it has finished them.

    Returns those that wait. `deferred` is in order, and each position comes once.
    """
    passed = state.passed
    waiting: list[Deferred] = []
    begin = end = state.position  # of a run that waits, and is not added to `passed` yet
    for each in deferred:
        first, stop = each.position, each.position + each.count
        if first >= state.position and not passed.overlaps(first, stop):
            waiting.append(each)  # there may be a million of these
            pieces = [(first, stop)]
        else:
            pieces = list(passed.gaps(max(first, state.position), stop))
            waiting += [Deferred(low, high - low, each.due) for low, high in pieces]
        for first, stop in pieces:
            if first > end:
                passed.add(begin, end)
                begin = first
            end = max(end, stop)
    passed.add(begin, end)
    return waiting
