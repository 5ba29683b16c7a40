"""The answers of a connection, in the order of its commands.

A publish is answered when it is stored, which is later than its command is read; whatever else the connection
has to say meanwhile waits its turn behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nsquark.errors import ProtocolError
from nsquark.wire import OK, pack_error


class Answer:
    """A place in the queue. Its data are there, or come when what was published is settled."""

    __slots__ = ("_answers", "_count", "_error", "data", "last")

    def __init__(
        self,
        answers: Answers,
        data: bytes | None,
        error: type[ProtocolError] = ProtocolError,
        count: int = 1,
    ) -> None:
        self._answers = answers
        self._error = error
        self._count = count
        self.data = data
        self.last = False  # the connection ends with it

    def settle(self, reason: str | None) -> None:
        """See topic.Receipt: `count` OKs, or an error."""
        if reason is None:
            self.data = OK * self._count if self._count > 1 else OK
        else:
            command = self._error.code.removeprefix("E_").removesuffix("_FAILED")
            self.data = pack_error(self._error(f"{command} failed {reason}").pack())
            self.last = True
        self._answers.flush()


class Answers:
    """Hands bytes to `write` in order, and calls `end` once when the last answer has been handed over."""

    __slots__ = ("_end", "_queue", "_write", "ended")

    def __init__(self, write: Callable[[bytes], None], end: Callable[[], None]) -> None:
        self._write = write
        self._end = end
        self._queue: deque[Answer] = deque()
        self.ended = False

    def say(self, data: bytes, last: bool = False) -> None:
        """An answer that is ready; with `last` nothing comes behind it."""
        if self._queue:
            answer = Answer(self, data)
            answer.last = last
            self._queue.append(answer)
        elif not self.ended:
            if data:
                self._write(data)
            if last:
                self.ended = True
                self._end()

    def expect(self, error: type[ProtocolError], count: int = 1) -> Answer:
        """Keep a place for the answer to `count` publishes."""
        answer = Answer(self, None, error, count)
        self._queue.append(answer)
        return answer

    def flush(self) -> None:
        """Hand over what is ready and has nothing unready before it."""
        queue = self._queue
        ready: list[bytes] = []
        last = False
        while queue and queue[0].data is not None:
            answer = queue.popleft()
            if not last and answer.data:
                ready.append(answer.data)
            last = last or answer.last
        if self.ended:
            return
        if ready:
            self._write(ready[0] if len(ready) == 1 else b"".join(ready))
        if last:
            self.ended = True
            self._end()
