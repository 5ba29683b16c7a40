"""The publishes to a replica group that are not stored yet, in the order of the calls.

    publish ──▶ waiting ──▶ sent ──▶ OK
                   ▲          │
                   └──────────┘ refused, or never written to a socket

When a connection is lost, every publish that was surely not stored goes back to the front of `waiting`, in
order. One that was sent and has no answer fails with OutcomeUnknown, unless it may be repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from nsquark.errors import (
    ConnectFailed,
    OutcomeUnknown,
    PendingFull,
    ProtocolError,
    PublishTimeout,
)

from ..size_limits import Body
from .members import GroupMembers
from .queued_publish import NOT_STORED, QueuedPublish, ends_what_is_behind

_FINEST = 0.05  # seconds between two looks at the deadlines


class PublishQueue:
    def __init__(
        self, members: GroupMembers, max_pending: int, repeat_unknown: bool, primary: Callable[[], str]
    ) -> None:
        """`primary` tells the address of the primary, for errors."""
        self.waiting: deque[QueuedPublish] = deque()
        self.sent: deque[QueuedPublish] = (
            deque()
        )  # the last ones are those that the connection has unanswered
        self.failures: dict[str, ConnectFailed] = {}  # by address, of the last search for a primary
        self.refusal = ""  # of the last publish that was refused, until one is stored
        self._members = members
        self._max_pending = max_pending
        self._repeat_unknown = repeat_unknown
        self._primary = primary
        self._deadline_timer: asyncio.TimerHandle | None = None

    def add(
        self,
        command: Sequence[bytes],
        size: int,
        timeout: float,
        retries: int,
        bodies: Sequence[Body] | None = None,
    ) -> asyncio.Future[bytes]:
        """Have a publish wait. The future is done when it is stored, or fails."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        repeats = float("inf") if self._repeat_unknown else retries
        publish = QueuedPublish(command, size, bodies, deadline, repeats, loop.create_future())
        self.waiting.append(publish)
        if self._deadline_timer is None or deadline < self._deadline_timer.when():
            self._expire_at(deadline)
        return publish.future

    def check_room(self) -> None:
        """Raises PendingFull if as many publishes as may be pending are not stored yet."""
        if len(self.waiting) + len(self.sent) >= self._max_pending:
            self._forget_done()
            if len(self.waiting) + len(self.sent) >= self._max_pending:
                raise PendingFull(f"{self._max_pending} publishes are not stored yet")

    def _forget_done(self) -> None:
        self.waiting = deque(each for each in self.waiting if not each.future.done())

    def answered_but(self, unanswered: int) -> None:
        """What was sent has its OKs, but for the last `unanswered`."""
        for _ in range(len(self.sent) - unanswered):
            self.sent.popleft()
        self.refusal = ""

    def take_back(
        self, unanswered: int, count_sent: int, refused: ProtocolError | None, error: Exception
    ) -> None:
        """The connection is gone. Decide for each publish without an OK: it fails, or is sent again.

        Of the last `unanswered`, `count_sent` went to the socket. `refused` is the error that nsqd answered
        to the first of them, `error` why the connection is gone.
        """
        publishes = list(self.sent)[len(self.sent) - unanswered :]
        self.sent.clear()
        again: list[QueuedPublish] = []
        for place, publish in enumerate(publishes):
            if publish.future.done():
                continue
            if place == 0 and refused is not None:
                if isinstance(refused, NOT_STORED):
                    again.append(publish)
                else:
                    publish.future.set_exception(refused)
            elif place >= count_sent or (refused is not None and ends_what_is_behind(refused)):
                again.append(publish)
            elif publish.repeats > 0:
                publish.repeats -= 1
                publish.maybe_stored = True
                again.append(publish)
            else:
                publish.maybe_stored = True
                publish.future.set_exception(
                    OutcomeUnknown(f"{self._members}: {error}; the message may be stored, or not")
                )
        if refused is not None and isinstance(refused, NOT_STORED):
            self.refusal = str(refused)
        self.waiting.extendleft(reversed(again))

    def fail_waiting(self, error: ConnectFailed) -> None:
        """Nothing of what waits can be sent."""
        waiting, self.waiting = self.waiting, deque()
        for publish in waiting:
            if publish.future.done():
                continue
            if publish.maybe_stored:
                publish.future.set_exception(OutcomeUnknown(str(error)))
            else:
                publish.future.set_exception(ConnectFailed(str(error), permanent=error.permanent))

    # ---- deadlines

    def _expire_at(self, deadline: float) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        loop = asyncio.get_running_loop()
        self._deadline_timer = loop.call_at(max(deadline, loop.time() + _FINEST), self._expire)

    def _expire(self) -> None:
        """Fail what is late, and forget what waits and is done."""
        self._deadline_timer = None
        now = asyncio.get_running_loop().time()
        self._forget_done()
        late = [each for each in self.waiting if each.deadline <= now]
        for publish in late:
            publish.future.set_exception(
                PublishTimeout(
                    f"{self._members} has not stored it in time: {self.reasons()}", sent=publish.maybe_stored
                )
            )
        if late:
            self._forget_done()
        unanswered = [each for each in self.sent if not each.future.done()]
        for publish in unanswered:
            if publish.deadline <= now:
                address = self._primary()
                publish.future.set_exception(
                    PublishTimeout(f"{self._members}: no answer from {address} in time", sent=True)
                )
        ahead = [each.deadline for each in (*self.waiting, *unanswered) if each.deadline > now]
        if ahead:
            self._expire_at(min(ahead))

    def stop_expiring(self) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()

    def reasons(self) -> str:
        """Why nothing is stored, with each address that was tried."""
        addresses = self._members.addresses
        if not addresses:
            return f"no node that {self._members.sources} list is a member of it"
        reasons = [str(self.failures.get(each) or each) for each in addresses]
        if self.refusal:
            reasons.insert(0, self.refusal)
        return "; ".join(reasons)

    def unanswered(self) -> list[asyncio.Future[bytes]]:
        """The newest publish that waits and the newest that was sent, as futures."""
        newest = [publishes[-1].future for publishes in (self.waiting, self.sent) if publishes]
        if all(future.done() for future in newest):  # cancelled ones hide those before them
            newest = [each.future for each in (*self.waiting, *self.sent)]
        return [future for future in newest if not future.done()]
