"""What clients publish, on its way from a read to the topic.

A connection has a `PublishStream`. When the connection has published, the stream follows: as long as what is
read is more of the same, it goes straight into the writer of the topic's log, and the topic's
`PendingPublishes` get the receipt. The topic settles the receipts when it has committed. Where the client may
publish to any topic, the stream goes from topic to topic as the commands do.

Unread bytes of a connection have one owner at a time. While the stream follows, that is the stream: it keeps
the beginning of a command that a read ends with. Otherwise it is the connection's parser.

The beginning of a large PUB is kept as a `LargePub`. The SocketPoll reads the rest of the body to where it
stays: the log writes that memory, and consumers are sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from nsquark.errors import ProtocolError
from nsquark.kernel import BatchWriter, Buffer, LargePub, begin_large_pub, command_line, unfinished_command

from .answers import AnswerQueue, Receipt

MOST_KEPT = 64 << 10  # bytes of an incomplete command; a larger one goes through the parser
LARGE_BODY = 64 << 10  # bytes of a body that is read to memory of its own, if a read ends within it
EXPECT_FROM = 192 << 10  # bytes of a body of which hardly two fit the shared buffer
LOOK_EVERY = 64  # publishes: how often the size of what is pending is looked at
LONGEST_LINE = 80  # bytes of a command line that names another topic; a longer one goes through the parser
MOST_TURNS = 500  # from topic to topic, in one call: about half a millisecond


class PendingPublishes:
    """What is published to a topic and not committed: messages in the writer of its log, and receipts."""

    __slots__ = (
        "_commit", "_large", "_published", "_too_much", "consumers", "open", "receipts", "since", "writer",
    )  # fmt: skip

    def __init__(
        self,
        writer: BatchWriter,
        published: Callable[[], object],
        commit: Callable[[], object],
        large: int,
        too_much: int,
    ) -> None:
        """`published` is called at the first publish, to have a commit come later.

        `commit` is called at once when more than `too_much` bytes are pending, and after a publish of `large`
        bytes while there are no consumers.
        """
        self.writer = writer
        self._published = published
        self._commit = commit
        self._large = large
        self._too_much = too_much
        self.receipts: list[Receipt] = []
        self.since = 0  # when the first publish came, ns since the epoch
        self.consumers = 0  # of all channels of the topic
        self.open = True  # to streams that follow

    def added(self, receipt: Receipt, size: int, now: int) -> None:
        """Messages with bodies of `size` bytes are in the writer."""
        receipts = self.receipts
        receipts.append(receipt)
        waiting = len(receipts)
        if waiting == 1:
            self.since = now
        if size >= self._large and not self.consumers:
            self._commit()
        elif waiting == 1:
            self._published()
        elif waiting % LOOK_EVERY == 0 and self.writer.size > self._too_much:
            self._commit()

    def added_large(self, receipt: Receipt, now: int) -> None:
        """A message that is large enough for a commit of its own is in the writer."""
        self.receipts.append(receipt)
        if len(self.receipts) == 1:
            self.since = now
        self._commit()

    def store(self) -> None:
        """Commit what is pending."""
        self._commit()

    def take_receipts(self) -> list[Receipt]:
        """The publishers since the last call; the caller settles them."""
        receipts = self.receipts
        self.receipts = []
        return receipts


class PublishedTo(Protocol):
    """A topic as a stream knows it."""

    @property
    def pending(self) -> PendingPublishes: ...


class PublishStream:
    """A connection that goes on publishing with one kind of command, to one topic or to one after another."""

    __slots__ = (
        "_answers", "_command", "_counts", "_error", "_line", "_max_body_size", "_max_msg_size", "_mpubs",
        "_name", "_pending", "_taken", "_topics", "expected", "heard", "kept", "large",
    )  # fmt: skip

    def __init__(
        self, answers: AnswerQueue, max_msg_size: int, max_body_size: int, counts: dict[str, int]
    ) -> None:
        """`counts` are the messages of the client by topic. `count_taken` brings them up to date."""
        self._answers = answers
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._counts = counts
        self._pending: PendingPublishes | None = None
        self._topics: Mapping[str, PublishedTo] | None = None
        self._name = ""
        self._line = b""
        self._command = b""
        self._mpubs = False
        self._error: type[ProtocolError] | None = None
        self._taken = 0  # messages, for the topic that is followed, and not in `counts` yet
        self.kept = b""  # the beginning of a command: it goes before what is read next
        self.large: LargePub | None = None  # the beginning of a large PUB: what is read next belongs to it
        # The size of the last body, if the next one had better be read to memory of its own.
        self.expected = 0
        self.heard = 0  # when the last whole command came while the stream followed, monotonic ns

    @property
    def following(self) -> bool:
        return self._pending is not None

    def follow(
        self,
        pending: PendingPublishes,
        name: str,
        line: bytes,
        error: type[ProtocolError],
        topics: Mapping[str, PublishedTo] | None = None,
    ) -> None:
        """Expect commands with this line (PUB or MPUB), which fail with `error`, for the topic of this name.

        The client may publish to all of `topics`, by name, with that command.
        """
        self._pending, self._name, self._line, self._error = pending, name, line, error
        self._topics = topics
        self._mpubs = line.startswith(b"M")
        self._command = b"MPUB " if self._mpubs else b"PUB "

    def forget(self) -> bytes:
        """Follow no longer; returns what is kept, which is the caller's from here on."""
        self.count_taken()
        kept = self.kept if self.large is None else self.large.command(self._line)
        self.kept = b""
        self.large = None
        self.expected = 0
        self._pending = None
        self._topics = None
        return kept

    def count_taken(self) -> None:
        """Add what was taken to the counts of the client."""
        if self._taken:
            self._counts[self._name] = self._counts.get(self._name, 0) + self._taken
            self._taken = 0

    def leads_on(self, data: Buffer, start: int, end: int) -> bool:
        """Whether the command at `start` names another topic that the stream may follow."""
        return self._turn_to_next(data, start, end) is not None

    def _turn_to_next(self, data: Buffer, start: int, end: int) -> PendingPublishes | None:
        """Follow the topic that the command at `start` names, if that is another one that takes publishes."""
        topics = self._topics
        if topics is None:
            return None
        line = command_line(data, start, end, self._command, LONGEST_LINE)
        if not line or line == self._line:
            return None
        name = line[len(self._command) : -1].decode("latin-1")
        topic = topics.get(name)
        if topic is None:
            return None
        pending = topic.pending
        if not pending.open:
            return None
        self.count_taken()
        self._pending, self._name, self._line = pending, name, line
        return pending

    def take(self, data: Buffer, start: int, end: int, now: int, monotonic: int, direct: bool = False) -> int:
        """Take what is expected of a read, whose first bytes are those that were kept.

        Returns how many bytes are taken or kept. What lies behind is something else, or too large to keep, or
        more than there are ids for at hand. The caller reads `direct`ly to a `large` PUB that is kept, or
        there is none.
        """
        pending = self._pending
        self.kept = b""
        if pending is None or not pending.open or self._answers.refused:
            return 0
        end = min(end, len(data))
        if not 0 <= start <= end:
            raise ValueError(f"[{start}, {end}) is not in the buffer")
        stop = start
        for turn in range(MOST_TURNS):  # noqa: B007  # a C integer, as the .pxd names it
            writer = pending.writer
            count, commands, size = writer.count, writer.commands, writer.body_bytes
            if self._mpubs:
                stop = writer.add_whole_mpubs(
                    data, stop, end, self._line, self._max_msg_size, self._max_body_size, now
                )
            else:
                stop = writer.add_whole_pubs(data, stop, end, self._line, self._max_msg_size, now)
            commands = writer.commands - commands
            if commands:
                self.expected = 0
                self._taken += writer.count - count
                self.heard = monotonic
                answer = self._answers.expect(self._error, commands)  # type: ignore[arg-type]  # it follows
            following = None
            if stop < end:
                following = self._turn_to_next(data, stop, end)
                if following is None and direct and not self._mpubs:
                    self.large = begin_large_pub(data, stop, end, self._line, LARGE_BODY, self._max_msg_size)
                    if self.large is not None:
                        stop = end
                if following is None and stop < end and end - stop <= MOST_KEPT:
                    self.kept = unfinished_command(
                        data, stop, end, self._line, self._max_msg_size, self._max_body_size
                    )
                    if self.kept:
                        stop = end
            if commands:
                # The last thing, as it may end in anything: the stream may have been told to forget.
                pending.added(answer, writer.body_bytes - size, now)
            if following is None or self._pending is not following or self._answers.refused:
                break
            pending = following
        return stop - start

    def take_large(self, now: int, monotonic: int) -> bool:
        """Take the large PUB that is kept, all of which has come; False where it is left to the parser."""
        pending, large = self._pending, self.large
        if pending is None or large is None:
            return False
        writer = pending.writer
        if writer.size:
            pending.store()  # the memory of the large one can be that of a batch if nothing is before it
            if self._pending is not pending or self.large is not large:
                return False
        if not pending.open or self._answers.refused or writer.ids_left < 1:
            return False
        size = large.size
        writer.add_large(large, now)
        self.large = None
        self.expected = size if size >= EXPECT_FROM else 0
        self._taken += 1
        self.heard = monotonic
        answer = self._answers.expect(self._error)  # type: ignore[arg-type]  # it follows
        pending.added_large(answer, now)  # the last thing: it may end in anything
        return True
