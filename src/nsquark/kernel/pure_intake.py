"""What clients publish, on its way from a read to the topic, and the answer back.

A connection has a `Source`. When it has published something, the source follows it: a further read that is
nothing but more of the same goes straight to the topic's `Intake`, and so into the writer of its log. The
`Answer` to it takes its place in the connection's `AnswerQueue` and is settled when the topic has committed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .pure import COMPLETE, BatchWriter, Buffer, scan_mpub, scan_pubs

OK = b"\0\0\0\x06\0\0\0\0OK"
MANY = 512  # answers to one read; more than that is left to the transport


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
        "_answers", "_error", "_intake", "_line", "_max_body_size", "_max_msg_size", "heard", "taken",
    )  # fmt: skip

    def __init__(self, answers: AnswerQueue, max_msg_size: int, max_body_size: int) -> None:
        self._answers = answers
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._intake: Intake | None = None
        self._line = b""
        self._error: Any = None
        self.taken = 0  # messages, since somebody set it to 0
        self.heard = 0  # when a Poll last read something while it followed, monotonic ns

    @property
    def following(self) -> bool:
        return self._intake is not None

    def follow(self, intake: Intake, line: bytes, error: Any) -> None:
        """Expect commands with this line (PUB or MPUB), which fail with `error`."""
        self._intake, self._line, self._error = intake, line, error

    def forget(self) -> None:
        self._intake = None

    def take(self, data: Buffer, end: int, now: int) -> int:
        """Take a whole read if it is nothing but what is expected; returns how many commands, 0 if it is not.

        It is also 0 when the ids at hand do not suffice.
        """
        intake = self._intake
        if intake is None or not intake.open:
            return 0
        writer = intake.writer
        before, size = writer.count, writer.body_bytes
        runs = self._runs(data, min(end, len(data)))
        if not 0 < sum(count for _, count, _ in runs) <= writer.ids_left:
            return 0
        mpubs = self._line.startswith(b"M")
        for start, count, length in runs:
            if mpubs:
                writer.add_mpub(data, start, count, now)
            else:
                writer.add_pubs(data, start, count, length, now)
        taken = writer.count - before
        writer.ids_left -= taken
        self.taken += taken
        commands = len(runs) if mpubs else taken
        answer = Answer(self._answers, self._error, commands)
        self._answers.queue.append(answer)
        intake.added(answer, writer.body_bytes - size, now)
        return commands

    def _runs(self, data: Buffer, end: int) -> list[tuple[int, int, int]]:
        """(start, messages, bytes of the line) for each part of the read; nothing if it is something else."""
        line = self._line
        if line.startswith(b"P"):
            stop, count, length = scan_pubs(data, 0, end, self._max_msg_size)
            whole = stop == end and bytes(data[:length]) == line
            return [(0, count, length)] if whole else []
        runs = []
        at = 0
        while at < end:
            body = at + len(line) + 4
            size = int.from_bytes(data[body - 4 : body], "big", signed=True)
            if bytes(data[at : at + len(line)]) != line or not 0 < size <= min(
                self._max_body_size, end - body
            ):
                return []
            limits = self._max_msg_size, self._max_body_size
            status, stop, count, _ = scan_mpub(data, body, body + size, *limits, 0, 0)
            if status != COMPLETE or stop != body + size:
                return []
            runs.append((body, count, 0))
            at = stop
        return runs
