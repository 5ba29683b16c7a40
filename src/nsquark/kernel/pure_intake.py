"""What clients publish, on its way from a read to the topic, and the answer back.

A connection has a `Source`. When it has published something, the source follows it: as long as what is read
is more of the same it goes straight to the topic's `Intake`, and so into the writer of its log; the beginning
of a command that a read ends with is kept for the next. The `Answer` to all of a read takes its place in the
connection's `AnswerQueue` and is settled when the topic has committed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .pure import COMPLETE, BatchWriter, Buffer, scan_mpub, scan_pubs

OK = b"\0\0\0\x06\0\0\0\0OK"
MANY = 512  # answers to one read; more than that is left to the transport
MOST_KEPT = 64 << 10  # bytes of an incomplete command; a larger one takes the long way


class Receipt(Protocol):
    """Whoever published something and waits for the answer."""

    def settle(self, reason: str | None) -> None:
        """Called once: None when it is stored, else why it is not."""


class AnswerQueue:
    """What a connection has to say, in order. Where `fd` is 0 or more, OKs go there past the transport."""

    __slots__ = ("closed", "ended", "fd", "queue", "transport")

    queue: deque[Any]
    transport: Any

    def __init__(self, *args: object) -> None:
        self.ended = self.closed = False
        self.fd = -1

    def refuse(self, answer: Answer, reason: str) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError


class Answer:
    """The place of an answer to `count` publishes, which comes when they are settled."""

    __slots__ = ("answers", "count", "data", "error", "last")

    def __init__(self, answers: AnswerQueue, error: Any, count: int) -> None:
        self.answers = answers
        self.error = error
        self.count = count
        self.data = b""  # empty until it is there
        self.last = False  # the connection ends with it

    def sent(self) -> bool:
        """Whether it could be sent at once, since nothing is before it."""
        answers = self.answers
        if answers.fd < 0 or self.count > MANY or answers.ended or answers.closed or len(answers.queue) != 1:
            return False
        transport = answers.transport
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        data = OK * self.count
        try:
            # The descriptor is the connection's until connection_lost, and is_closing is true before that.
            done = os.write(answers.fd, data)
        except OSError:
            done = 0  # full or broken: the transport finds out
        answers.queue.clear()
        if done != len(data):
            transport.write(data[done:])
        return True

    def settle(self, reason: str | None) -> None:
        if reason is not None:
            self.answers.refuse(self, reason)
        elif not self.sent():
            self.data = OK * self.count
            self.answers.flush()


def settle_all(receipts: list[Receipt]) -> None:
    """Everything that they are for is stored. What goes wrong with one comes out when all are told."""
    failure = None
    for receipt in receipts:
        try:
            receipt.settle(None)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Intake:
    """What a topic was given since its last commit: messages in the writer of its log, and who gave them."""

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

        `commit` is called at once when that has come to more than `too_much` bytes, and after a publish of
        `large` bytes while there are no consumers.
        """
        self.writer = writer
        self._published = published
        self._commit = commit
        self._large = large
        self._too_much = too_much
        self.receipts: list[Receipt] = []
        self.since = 0  # when the first came, ns since the epoch
        self.consumers = 0
        self.open = True  # to sources that follow

    def added(self, receipt: Receipt, size: int, now: int) -> None:
        """Messages with bodies of `size` bytes are in the writer."""
        self.receipts.append(receipt)
        waiting = len(self.receipts)
        if waiting == 1:
            self.since = now
        if size >= self._large and not self.consumers:
            self._commit()
        elif waiting == 1:
            self._published()
        elif waiting % 64 == 0 and self.writer.size > self._too_much:
            self._commit()


class Source:
    """One client that publishes: what is expected of it next, and how it is answered."""

    __slots__ = (
        "_answers", "_error", "_intake", "_line", "_max_body_size", "_max_msg_size", "heard", "kept", "taken",
    )  # fmt: skip

    def __init__(self, answers: AnswerQueue, max_msg_size: int, max_body_size: int) -> None:
        self._answers = answers
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._intake: Intake | None = None
        self._line = b""
        self._error: Any = None
        self.kept = b""  # the beginning of a command: goes before what is read next
        self.taken = 0  # messages, since somebody set it to 0
        self.heard = 0  # when a Poll last read a command while it followed, monotonic ns

    @property
    def following(self) -> bool:
        return self._intake is not None

    def follow(self, intake: Intake, line: bytes, error: Any) -> None:
        """Expect commands with this line (PUB or MPUB), which fail with `error`."""
        self._intake, self._line, self._error = intake, line, error

    def forget(self) -> bytes:
        """Follow no longer; returns what is kept, which is another's from here on."""
        kept, self.kept, self._intake = self.kept, b"", None
        return kept

    def take(self, data: Buffer, start: int, end: int, now: int) -> int:
        """Take what is expected of a read, whose first bytes are those that were kept.

        Returns how much of it is taken or kept: what comes behind is something else, or too large to keep, or
        more than there are ids for at hand.
        """
        intake, self.kept = self._intake, b""
        if intake is None or not intake.open:
            return 0
        if not 0 <= start <= min(end, len(data)):
            raise ValueError("not in the buffer")
        writer = intake.writer
        before, size = writer.count, writer.body_bytes
        data = memoryview(data)[start:end]
        runs, stop = self._runs(data)
        if not 0 < sum(count for _, count, _ in runs) <= writer.ids_left:
            runs, stop = [], 0
        mpubs = self._line.startswith(b"M")
        for at, count, length in runs:
            if mpubs:
                writer.add_mpub(data, at, count, now)
            else:
                writer.add_pubs(data, at, count, length, now)
        if stop < len(data) and self._begins(data[stop:]):
            self.kept = bytes(data[stop:])
            stop = len(data)
        if runs:
            taken = writer.count - before
            writer.ids_left -= taken
            self.taken += taken
            answer = Answer(self._answers, self._error, len(runs) if mpubs else taken)
            self._answers.queue.append(answer)
            intake.added(answer, writer.body_bytes - size, now)  # the last thing: it may end in anything
        return stop

    def _runs(self, data: memoryview) -> tuple[list[tuple[int, int, int]], int]:
        """(start, messages, bytes of the line) for each part of what is expected, and where it ends."""
        line, end = self._line, len(data)
        if line.startswith(b"P"):
            stop, count, length = scan_pubs(data, 0, end, self._max_msg_size)
            return ([(0, count, length)], stop) if count and data[:length] == line else ([], 0)
        runs = []
        at = 0
        while at < end:
            body = at + len(line) + 4
            size = int.from_bytes(data[body - 4 : body], "big", signed=True)
            if data[at : at + len(line)] != line or not 0 < size <= min(self._max_body_size, end - body):
                break
            limits = self._max_msg_size, self._max_body_size
            status, stop, count, _ = scan_mpub(data, body, body + size, *limits, 0, 0)
            if status != COMPLETE or stop != body + size:
                break
            runs.append((body, count, 0))
            at = stop
        return runs, at

    def _begins(self, data: memoryview) -> bool:
        """Whether this is how an expected command begins, with nothing wrong so far and something missing."""
        line = self._line
        if len(data) > MOST_KEPT or data[: len(line)] != line[: len(data)]:
            return False
        body = len(line) + 4
        if len(data) < body:
            return True
        size = int.from_bytes(data[body - 4 : body], "big", signed=True)
        if size <= 0 or len(data) - body >= size:
            return False
        if line.startswith(b"P"):
            return size <= self._max_msg_size
        if size > self._max_body_size:
            return False
        if len(data) < body + 4:
            return True
        count = int.from_bytes(data[body : body + 4], "big", signed=True)
        if not 0 < count <= (self._max_body_size - 4) // 5:
            return False
        at, stop = body + 4, body + size
        while count and len(data) - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big", signed=True)
            if not 0 < size <= min(self._max_msg_size, stop - at - 4):
                return False
            at += 4 + size
            count -= 1
        return count > 0 or at >= len(data)
