"""Building the log and the journal of one topic from the disk queues of Go's nsqd.

Go's nsqd keeps a queue for each channel, with a copy of every message that the channel has yet to deliver,
and one for the topic, with what was not passed on to the channels yet. nsquark has one log, and the journal
says what a channel has to deliver of it:

    log      | of mail and audit | of mail | of audit |          of the topic's own queue |
    mail     |                   |         | finished |                                   |
    audit    |                   | finished|          |                                   |
                                                      ^ the line, from which every channel gets everything

Messages that are next in several queues, and are the same, become one message of the log. The queues are
merged by time for that. Each change of owners costs a range in the journal and in the memory of nsqd. So when
there are very many of them, the rest of the queues is written one behind the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from nsquark.diskqueue import Place, QueuedMessage, QueueReader, Unreadable
from nsquark.durable import sync_path, write_all
from nsquark.log import IdLease, JournalRecords, Limits, TopicLog
from nsquark.log.file_names import parse_stem

from .channel_shares import ChannelShares
from .existing_topic import KnownChannels, copy_topic, read_channels
from .plan import TopicPlan
from .progress import Checkpoint, Imported

JOURNAL = "journal.000001"
BATCH = 256 << 10  # bytes
CHECKPOINT = 64 << 20  # bytes of bodies
MOST_MERGED = 16  # queues: each has a file open, and a piece of it in memory
MOST_RANGES = 100_000


class TopicImport:
    """One topic on its way. `messages` are those in the log so far, `copies` those of the queues."""

    def __init__(
        self,
        plan: TopicPlan,
        directory: Path,
        existing: Path,
        limits: Limits,
        lease: IdLease,
        floor: int,
        max_msg_size: int,
        tell: Callable[[Path, Unreadable], None],
    ) -> None:
        """Build in `directory`. `existing` is where nsquark has the topic, if it has it already."""
        self.plan = plan
        self.messages = self.copies = 0
        self._directory = directory
        self._existing = existing
        self._limits = limits
        self._lease = lease
        self._floor = floor
        self._max_msg_size = max_msg_size
        self._tell = tell
        self._readers: list[QueueReader] = []
        self._merging = len(plan.queues) <= MOST_MERGED
        self._line: int | None = None
        self._old_line: int | None = None
        self._numbers: dict[str, int] = {}
        self._since_checkpoint = 0
        self._places: dict[str, list[int]] = {}

    @property
    def bytes_left(self) -> int:
        """How much of the queues is unread."""
        return sum(each.bytes_left for each in self._readers)

    def told_of_attempts(self) -> str:
        """What to say of attempts that could not be kept."""
        count = self._shares.forgotten
        return f"; attempts of {count} begin at 1 again" if count else ""

    def run(
        self, checkpoint: Checkpoint | None, save: Callable[[Checkpoint], None], go_on: Callable[[], bool]
    ) -> Imported | None:
        """Build the topic, from a checkpoint on; returns None if `go_on` said no. Raises OSError.

        `go_on` is asked once in a while. The disk holds the topic when this returns. A checkpoint is saved
        when the disk holds what it speaks of.
        """
        with ExitStack() as stack:
            self._open(checkpoint, stack)
            self._save = save
            done = self._line is not None or self._import_channels(go_on)
            if done and self._line is None:
                self._log.commit()
                self._line = self._log.end
                self._shares.flush()
            done = done and self._import_own_queue(go_on)
            if not done:
                self._checkpoint()
                return None
            self._complete()
        return Imported(self.plan.name, self.messages, self.copies)

    # ---- the files

    def _open(self, checkpoint: Checkpoint | None, stack: ExitStack) -> None:
        path = self._directory / JOURNAL
        if checkpoint is None:
            copy_topic(self._existing, self._directory)
        else:
            self._cut_back(checkpoint, path)
        self._log = TopicLog(self._directory, self._limits, self._lease, self._floor)
        stack.callback(self._log.close, sync=False)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, self._fd)
        self._journal = JournalRecords()
        if checkpoint is None:
            known = read_channels(self._existing, self._log, self.plan)
            self._begin_journal(known)
            self._numbers, self._old_line = known.numbers, known.line
            self._shares = ChannelShares(self._journal, list(known.numbers.values()), self._log.end)
        else:
            self._take_up(checkpoint)
        for queue in self.plan.all_queues:
            place = self._places.get(queue.name)
            reader = QueueReader(queue, self._max_msg_size, self._tell, Place(*place) if place else None)
            self._readers.append(reader)
            stack.callback(reader.close)

    def _cut_back(self, checkpoint: Checkpoint, journal: Path) -> None:
        """Cut off what was written behind the checkpoint."""
        for path in self._directory.glob("*.log"):
            base, _ = parse_stem(path.stem) or (checkpoint.segment + 1, 0)
            if base > checkpoint.segment:
                path.unlink()
            elif base == checkpoint.segment:
                os.truncate(path, checkpoint.segment_size)
        os.truncate(journal, checkpoint.journal_size)

    def _take_up(self, checkpoint: Checkpoint) -> None:
        self.messages, self.copies = checkpoint.messages, checkpoint.copies
        self._merging, self._line = checkpoint.merging, checkpoint.line
        self._numbers, self._places = checkpoint.numbers, checkpoint.places
        self._old_line = checkpoint.old_line
        self._shares = ChannelShares(self._journal, list(self._numbers.values()), self._log.end)
        self._shares.ranges = checkpoint.ranges
        self._shares.with_attempts = {
            self._numbers[name]: count for name, count in checkpoint.with_attempts.items()
        }

    def _begin_journal(self, known: KnownChannels) -> None:
        """Write what is known before the import: the channels, and what is open of an existing log."""
        journal = self._journal
        journal.snapshot(goes_on=True)
        journal.identify(known.epoch)
        for deferred in known.deferred:
            journal.defer(deferred)
        for name, number in known.numbers.items():
            state = known.channels[name]
            journal.create(number, name, state.position)
            for start, end in state.passed:
                journal.finish(number, start, end)
            for position, (attempts, due) in state.waiting.items():
                journal.requeue(number, position, position + 1, attempts, due)

    def _checkpoint(self) -> None:
        """Have the disk hold everything so far, and save how far that is."""
        self._log.commit()
        self._log.sync()
        self._shares.flush()
        self._write_journal()
        sync_path(self._directory)
        sync_path(self._directory.parent)
        names = {number: name for name, number in self._numbers.items()}
        segment = self._log.segments[-1]
        for reader in self._readers:
            self._places[reader.files.name] = list(reader.place)
        self._save(
            Checkpoint(
                self.plan.name,
                segment.file_base,
                segment.size,
                os.fstat(self._fd).st_size,
                self._numbers,
                self._places,
                self._merging,
                self._shares.ranges,
                {names[number]: count for number, count in self._shares.with_attempts.items()},
                self._line,
                self._old_line,
                self.messages,
                self.copies,
            )
        )
        self._since_checkpoint = 0

    def _write_journal(self) -> None:
        if self._journal.dirty:
            write_all(self._fd, self._journal.block())
        os.fsync(self._fd)

    def _complete(self) -> None:
        """Write the rest of the log and of the journal; the disk holds all of it then."""
        self._log.commit()
        self._log.sync()
        assert self._line is not None
        self._journal.pump(self._line if self._old_line is None else self._old_line)
        self._journal.snapshot(goes_on=False)
        self._write_journal()
        sync_path(self._directory)

    # ---- the messages

    def _import_channels(self, go_on: Callable[[], bool]) -> bool:
        """Import the queues of the channels; returns whether that is done."""
        readers = [each for each in self._readers if each.files.channel is not None]
        while self._merging and (heads := [each for each in readers if each.head is not None]):
            same = _next_of(heads)
            if not self._add(same, go_on):
                return False
            self._merging = self._shares.ranges < MOST_RANGES
        for reader in readers:
            while reader.head is not None:
                if not self._add([reader], go_on):
                    return False
        return True

    def _import_own_queue(self, go_on: Callable[[], bool]) -> bool:
        """Import the topic's own queue, which every channel gets; returns whether that is done."""
        for reader in self._readers:
            while reader.files.channel is None and reader.head is not None:
                if not self._add([reader], go_on):
                    return False
        return True

    def _add(self, readers: Sequence[QueueReader], go_on: Callable[[], bool]) -> bool:
        """Add the message that is next in these queues; returns whether to go on."""
        log = self._log
        head = readers[0].head
        assert head is not None
        position = log.end + log.pending
        log.add_bodies([head.body], head.timestamp_ns, 0)
        self.messages += 1
        self.copies += len(readers)
        if self._line is None:
            owners = {self._numbers[each.files.channel or ""]: _attempts(each) for each in readers}
            self._shares.add(position, owners)
        for reader in readers:
            reader.advance()
        if log.writer.size < BATCH:
            return True
        self._since_checkpoint += log.writer.size
        log.commit()
        log.tail.clear()
        if self._since_checkpoint >= CHECKPOINT:
            self._checkpoint()
        return go_on()


def _attempts(reader: QueueReader) -> int:
    return reader.head.attempts if reader.head is not None else 0


def _next_of(readers: Sequence[QueueReader]) -> list[QueueReader]:
    """The readers whose next message is the oldest one; all of them have the same message."""
    if len(readers) == 1:
        return [readers[0]]
    first = min(readers, key=_age)
    return [each for each in readers if each is first or _is_same(each.head, first.head)]


def _age(reader: QueueReader) -> tuple[int, bytes]:
    assert reader.head is not None
    return reader.head.timestamp_ns, reader.head.id


def _is_same(one: QueuedMessage | None, other: QueuedMessage | None) -> bool:
    return (
        one is not None
        and other is not None
        and one.id == other.id
        and one.timestamp_ns == other.timestamp_ns
        and one.body == other.body
    )
