"""The answers of a connection, in the order of its commands.

A publish is answered when it is stored, which is later than its command is read; whatever else the connection
has to say meanwhile waits its turn behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nsquark.errors import ProtocolError
from nsquark.kernel import Answer, AnswerQueue
from nsquark.wire import OK, pack_error


class Answers(AnswerQueue):
    """Hands bytes to `write` in order, and calls `end` once when the last answer has been handed over."""

    __slots__ = ("_end", "_write", "_write_now")

    def __init__(self, write: Callable[[bytes], None], end: Callable[[], None]) -> None:
        super().__init__()
        self._write = self._write_now = write
        self._end = end
        # Bytes are ready and wait for an Answer before them; so does a step, to be taken when it is its turn.
        self.queue: deque[Answer | bytes | Callable[[], None]] = deque()
        # `ended`: the last answer is said, though it may still be in the queue.
        # `closed`: nothing is handed over any more.

    def send_past(self, transport: asyncio.Transport) -> None:
        """Send OKs with nothing before them at once, where `write` may wait for the end of the loop's turn.

        Who publishes one message at a time can make the next while we answer others.
        """
        self.transport = transport
        self.fd = transport.get_extra_info("socket").fileno()

    def say(self, data: bytes, last: bool = False) -> None:
        """An answer that is ready; with `last` nothing comes behind it."""
        if self.ended:
            return
        self.ended = last
        self.queue.append(data)
        self.flush()

    def say_then(self, data: bytes, step: Callable[[], None]) -> None:
        """An answer, and what to do when it and all before it are handed over."""
        if self.ended:
            return
        self.queue += (data, step)
        self.flush()

    def write_through(self, write: Callable[[bytes], None], write_now: Callable[[bytes], None]) -> None:
        """What is handed over from here on goes another way, an OK at once."""
        self._write, self._write_now = write, write_now
        self.fd = -1

    def let_go(self) -> None:
        """The connection is gone. Publishes that are not settled yet hold this object, not the connection."""
        self.ended = self.closed = True
        self.queue.clear()
        self._write = self._write_now = self._end = self.transport = None  # type: ignore[assignment]
        self.fd = -1

    def expect(self, error: type[ProtocolError], count: int = 1) -> Answer:
        """Keep a place for the answer to `count` publishes."""
        answer = Answer(self, error, count)
        if not self.ended:
            self.queue.append(answer)
        return answer

    def refuse(self, answer: Answer, reason: str) -> None:
        """The answer to publishes that could not be stored, with which the connection ends."""
        command = answer.error.code.removeprefix("E_").removesuffix("_FAILED")
        answer.data = pack_error(answer.error(f"{command} failed {reason}").pack())
        answer.last = True
        self.flush()

    def flush(self) -> None:
        """Hand over what is ready and has nothing unready before it."""
        queue = self.queue
        ready: list[bytes] = []
        while queue:
            first = queue[0]
            if type(first) is Answer:
                if not first.data:
                    break
                ready.append(first.data)
                if first.last:
                    self.ended = True
                    queue.clear()
                    break
            elif type(first) is bytes:
                ready.append(first)
            else:
                self._hand_over(ready)
                ready = []
                queue.popleft()
                if not self.closed:
                    first()  # type: ignore[operator]  # neither of the two above
                continue
            queue.popleft()
        if self.closed:
            return
        self._hand_over(ready)
        if self.ended and not queue:
            self.closed = True
            self._end()

    def _hand_over(self, ready: list[bytes]) -> None:
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        if data and not self.closed:
            (self._write_now if data == OK else self._write)(data)
