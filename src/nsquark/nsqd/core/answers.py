"""The answers of a connection, in the order of its commands.

A publish is answered when it is stored, which is later than its command is read. `AnswerQueue` keeps a place
for that answer, a `PublishAnswer`, and every later answer of the connection waits behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from nsquark.errors import ProtocolError
from nsquark.kernel import Buffer, write_some
from nsquark.wire import OK, pack_error

MOST_AT_ONCE = 512  # OKs that are written past the transport; the transport writes more than that
OK_SIZE = len(OK)
OKS = OK * MOST_AT_ONCE


class Receipt(Protocol):
    """Belongs to a publisher that waits until its messages are stored."""

    def settle(self, reason: str | None) -> None:
        """Called once: with None when the messages are stored, else with the reason why they are not."""


class AnswerQueue:
    """Hands bytes to `write` in order, and calls `end` once when the last answer has been handed over."""

    __slots__ = (
        "_end", "_write", "closed", "ended", "fd", "layered", "queue", "refused", "settling", "transport",
        "write_now",
    )  # fmt: skip

    def __init__(self, write: Callable[[Buffer], None], end: Callable[[], None]) -> None:
        self._write = self.write_now = write
        self._end = end
        # Bytes are ready and wait for a PublishAnswer before them. A step is taken when its turn comes.
        # A list: an idle connection has an empty one, and an empty deque would take 700 bytes more.
        self.queue: list[PublishAnswer | bytes | Callable[[], None]] = []
        self.ended = False  # the last answer is given, though it may still be in the queue
        self.closed = False  # nothing is handed over any more
        # A publish could not be stored. The connection ends with that answer. What comes behind it must not
        # be stored, because its client would not be told.
        self.refused = False
        self.settling = False  # `settle_all` will flush
        self.transport: asyncio.Transport | None = None
        self.layered = False  # `write_now` goes through TLS or compression
        self.fd = -1  # where it is 0 or more, OKs go there past the transport

    def send_past(self, transport: asyncio.Transport) -> None:
        """Send OKs with nothing before them at once, where `write` may wait for the end of the loop's turn.

        A client that publishes one message at a time makes the next while nsqd answers others.
        """
        self.transport = transport
        self.fd = transport.get_extra_info("socket").fileno()

    def say(self, data: bytes, last: bool = False) -> None:
        """Give an answer that is ready; with `last`, no other comes behind it."""
        if self.ended:
            return
        self.ended = last
        self.queue.append(data)
        self.flush()

    def say_then(self, data: bytes, step: Callable[[], None]) -> None:
        """Give an answer, and call `step` when it and all answers before it are handed over."""
        if self.ended:
            return
        self.queue.append(data)
        self.queue.append(step)
        self.flush()

    def write_through(self, write: Callable[[Buffer], None], write_now: Callable[[Buffer], None]) -> None:
        """Hand answers over to the functions of layers from here on: to `write_now` if it is a single OK."""
        self._write, self.write_now = write, write_now
        self.layered = True
        self.fd = -1

    def let_go(self) -> None:
        """The connection is gone. Publishes that are not settled yet hold this object, not the connection."""
        self.ended = self.closed = True
        self.queue.clear()
        self._write = self.write_now = self._end = None  # type: ignore[assignment]
        self.transport = None
        self.layered = False
        self.fd = -1

    def expect(self, error: type[ProtocolError], count: int = 1) -> PublishAnswer:
        """Keep a place for the answer to `count` publishes, which is an `error` if they cannot be stored."""
        answer = PublishAnswer.__new__(PublishAnswer)
        answer.answers = self
        answer.error = error
        answer.count = count
        answer.data = b""
        answer.last = False
        if not self.ended:
            self.queue.append(answer)
        return answer

    def send_now(self, answer: PublishAnswer) -> bool:
        """Write the OKs of an answer past the transport, if nothing is before or behind it.

        Returns whether that is done; what the socket did not take of it is left to the transport.
        """
        queue = self.queue
        if answer.count > MOST_AT_ONCE or self.ended or self.closed or len(queue) != 1 or not self.can_pass():
            return False
        size = OK_SIZE * answer.count
        done = write_some(self.fd, OKS, size)
        queue.clear()
        if done != size:
            self.transport.write(OKS[done:size])  # type: ignore[union-attr]
        return True

    def can_pass(self) -> bool:
        """Whether bytes may be written to `fd` now, past the transport: nothing waits there to be sent.

        The descriptor belongs to the connection until connection_lost, and is_closing is true before that.
        What the socket does not take must be given to the transport, which finds out why.
        """
        if self.fd < 0 or self.transport is None:
            return False
        return not self.transport.get_write_buffer_size() and not self.transport.is_closing()

    def refuse(self, answer: PublishAnswer, reason: str) -> None:
        """Answer publishes that could not be stored. The connection ends with this answer."""
        command = answer.error.code.removeprefix("E_").removesuffix("_FAILED")
        answer.data = pack_error(answer.error(f"{command} failed {reason}").pack())
        answer.last = True
        self.refused = True
        self.flush()

    def flush(self) -> None:
        """Hand over what is ready and has nothing unready before it."""
        queue = self.queue
        ready: list[bytes] = []
        done = 0
        while done < len(queue):
            first = queue[done]
            if type(first) is PublishAnswer:
                if not first.data:
                    break
                ready.append(first.data)
                if first.last:
                    self.ended = True
                    queue.clear()
                    done = 0
                    break
            elif type(first) is bytes:
                ready.append(first)
            else:
                del queue[: done + 1]  # first: the step may give answers by itself
                done = 0
                self._hand_over(ready)
                ready = []
                if not self.closed:
                    first()  # type: ignore[operator]  # neither of the two above
                continue
            done += 1
        del queue[:done]
        if self.closed:
            return
        self._hand_over(ready)
        if self.ended and not queue:
            self.closed = True
            self._end()

    def _hand_over(self, ready: list[bytes]) -> None:
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        if data and not self.closed:
            if len(data) == OK_SIZE and data == OK:
                self.write_now(data)
            else:
                self._write(data)


class PublishAnswer:
    """The place of the answer to `count` publishes. `AnswerQueue.expect` makes one; it is a Receipt."""

    __slots__ = ("answers", "count", "data", "error", "last")

    answers: AnswerQueue
    error: type[ProtocolError]
    count: int
    data: bytes  # empty until the answer is known
    last: bool  # the connection ends with this answer

    def settle(self, reason: str | None) -> None:
        answers = self.answers
        if reason is not None:
            answers.refuse(self, reason)
        elif not answers.send_now(self):
            self.data = OK * self.count
            answers.flush()


def settle_all(receipts: list[Receipt]) -> None:
    """Tell all of them that their messages are stored. If one raises, the others are told first.

    Of a connection that published to many topics there may be many receipts: they go out together.
    """
    failure = None
    settling: list[AnswerQueue] = []
    for receipt in receipts:
        try:
            if type(receipt) is PublishAnswer:
                answer = receipt  # C types in the .pxd: most receipts are settled by a direct call
                answers = answer.answers
                if not answers.settling and not answers.send_now(answer):
                    answers.settling = True
                    settling.append(answers)
                if answers.settling:
                    answer.data = OK * answer.count
            else:
                receipt.settle(None)
        except Exception as error:
            failure = failure or error
    for answers in settling:
        answers.settling = False
        try:
            answers.flush()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
