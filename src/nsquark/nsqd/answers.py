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
    """The place of an answer to `count` publishes, which comes when they are settled (see topic.Receipt)."""

    __slots__ = ("_answers", "_error", "count", "data", "last")

    def __init__(self, answers: Answers, error: type[ProtocolError], count: int) -> None:
        self._answers = answers
        self._error = error
        self.count = count
        self.data = b""  # empty until it is there
        self.last = False  # the connection ends with it

    def settle(self, reason: str | None) -> None:
        if reason is not None:
            command = self._error.code.removeprefix("E_").removesuffix("_FAILED")
            self.data = pack_error(self._error(f"{command} failed {reason}").pack())
            self.last = True
        elif self.count > 1:
            self.data = OK * self.count
        else:
            answers = self._answers
            if len(answers.queue) == 1 and not answers.ended and not answers.closed:
                # One publish at a time: its publisher can make the next while we answer others. The answers
                # to a run are not worth a system call each.
                answers.queue.clear()
                answers.write_now(OK)
                return
            self.data = OK
        self._answers.flush()


class Answers:
    """Hands bytes to `write` in order, and calls `end` once when the last answer has been handed over."""

    __slots__ = ("_end", "_write", "closed", "ended", "queue", "write_now")

    def __init__(
        self,
        write: Callable[[bytes], None],
        end: Callable[[], None],
        write_now: Callable[[bytes], None] | None = None,
    ) -> None:
        """`write_now` sends at once where `write` may wait for the end of the loop's turn."""
        self._write = write
        self.write_now = write_now or write
        self._end = end
        # Bytes are ready and wait for an Answer before them; so does a step, to be taken when it is its turn.
        self.queue: deque[Answer | bytes | Callable[[], None]] = deque()
        self.ended = False  # the last answer is said, though it may still be in the queue
        self.closed = False  # nothing is handed over any more

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
        """What is handed over from here on goes another way."""
        self._write = write
        self.write_now = write_now

    def expect(self, error: type[ProtocolError], count: int = 1) -> Answer:
        """Keep a place for the answer to `count` publishes."""
        answer = Answer(self, error, count)
        if not self.ended:
            self.queue.append(answer)
        return answer

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
            self._write(data)
