"""Publishing to the primary of a replica group, whichever member that is.

Publishes wait in one queue, in the order of the calls, until they are sent to the primary. At most one
connection is used at a time. When it is lost, every publish that was surely not stored goes back to the front
of the queue, in order; one that was sent and has no answer fails with OutcomeUnknown, unless it may be
repeated.

    publish ──▶ waiting ──▶ sent ──▶ OK
                   ▲          │
                   └──────────┘ refused, or never written to a socket
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence

from nsquark.errors import (
    ConnectFailed,
    ConnectionLost,
    OutcomeUnknown,
    PendingFull,
    ProtocolError,
    PublishTimeout,
    UsageError,
)
from nsquark.wire.commands import NOP
from nsquark.wire.identify import IdentifyResponse

from ...config import Config
from ...connection import NsqdConnection
from ...events import Connected, Disconnected, Event, EventHook, call_hook
from ...message import Message
from ..size_limits import Body, SizeLimits, split_size
from .members import GroupMembers
from .primary_search import MemberConnection, PrimarySearch, group_delays
from .queued_publish import NOT_STORED, QueuedPublish, ends_what_is_behind

logger = logging.getLogger(__name__)

_SILENT = 1.0  # seconds without an answer, after which the other members are asked whether one of them leads
_FINEST = 0.05  # seconds between two looks at the deadlines


class GroupPublisher:
    """All publishes of a producer to one replica group."""

    def __init__(
        self,
        addresses: Sequence[str],
        group: str | None,
        lookupds: Sequence[str],
        config: Config,
        max_pending: int,
        repeat_unknown: bool,
        on_event: EventHook | None,
    ) -> None:
        self._members = GroupMembers(addresses, group, lookupds, config, self._emit)
        self._config = config
        self._max_pending = max_pending
        self._repeat_unknown = repeat_unknown
        self._on_event = on_event
        self._waiting: deque[QueuedPublish] = deque()
        self._sent: deque[QueuedPublish] = (
            deque()
        )  # the last ones are those that the connection has unanswered
        self._member: MemberConnection | None = None
        self._limits = SizeLimits(config, IdentifyResponse())
        self._failures: dict[str, ConnectFailed] = {}
        self._refusal = ""  # of the last publish that was refused, until one is stored
        self._delays: Iterator[float] | None = None  # None after an answer: the next search begins at once
        self._search: asyncio.Task[None] | None = None
        self._resumed: asyncio.Future[None] | None = None  # calls `_send` when nsqd reads again
        self._connected: asyncio.Future[None] | None = None  # for callers that wait for a primary
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._closed = False

    def _emit(self, event: Event) -> None:
        call_hook(self._on_event, event)

    # ---- publishing

    def publish(
        self,
        command: Sequence[bytes],
        size: int,
        timeout: float,
        retries: int,
        bodies: Sequence[Body] | None = None,
    ) -> asyncio.Future[bytes]:
        """Queue a PUB or DPUB, or the MPUB of `bodies`. The future is done when it is stored, or fails.

        Raises UsageError if the primary is known not to take it.
        """
        loop = asyncio.get_running_loop()
        if size > self._limits.unchecked and self._member is not None:
            self._limits.check(self._member.address, command, bodies)
        deadline = loop.time() + timeout
        repeats = float("inf") if self._repeat_unknown else retries
        publish = QueuedPublish(command, size, bodies, deadline, repeats, loop.create_future())
        self._waiting.append(publish)
        if self._deadline_timer is None or deadline < self._deadline_timer.when():
            self._expire_at(deadline)
        self._send()
        return publish.future

    def publish_nowait(
        self, command: Sequence[bytes], size: int, timeout: float, bodies: Sequence[Body] | None = None
    ) -> asyncio.Future[bytes]:
        """`publish` for a caller that does not wait. Raises PendingFull, too."""
        if len(self._waiting) + len(self._sent) >= self._max_pending:
            self._waiting = deque(each for each in self._waiting if not each.future.done())
            if len(self._waiting) + len(self._sent) >= self._max_pending:
                raise PendingFull(f"{self._max_pending} publishes are not stored yet")
        return self.publish(command, size, timeout, 0, bodies)

    @property
    def _connection(self) -> NsqdConnection[Message] | None:
        member = self._member
        return member.connection if member is not None else None

    def _send(self, _: object = None) -> None:
        """Send what waits, as far as the primary takes it; without a primary, look for it."""
        waiting = self._waiting
        connection = self._connection
        if connection is None or not connection.open:
            if waiting:
                self._look_for_primary()
            return
        sent, limits = self._sent, self._limits
        if not sent:
            self._answered_at = connection.loop.time()
        while waiting and connection.unanswered < self._max_pending:
            if (resumed := connection.write_resumed) is not None:
                if resumed is not self._resumed:
                    self._resumed = resumed
                    resumed.add_done_callback(self._send)
                break
            publish = waiting.popleft()
            if publish.future.done():  # cancelled, or too late
                continue
            if publish.size > limits.unchecked:
                try:
                    limits.check(connection.address, publish.command, publish.bodies)
                except UsageError as error:
                    publish.future.set_exception(error)
                    continue
            connection.ask_in_pieces(publish.command, publish.size, publish.future)
            sent.append(publish)
        if sent and self._silence_timer is None:
            self._silence_timer = connection.loop.call_later(_SILENT, self._heed_silence)

    # ---- the calls of the connection

    def _answers_came(self) -> None:
        """The connection has got OKs, in the order of what was sent."""
        connection = self._connection
        if connection is None:
            return
        sent = self._sent
        for _ in range(len(sent) - connection.unanswered):
            sent.popleft()
        self._answered_at = connection.loop.time()
        self._delays, self._refusal = None, ""
        if self._search is not None:  # it was silent for a moment only
            self._search.cancel()
        if self._waiting:
            self._send()

    def _inherit(
        self,
        unanswered: deque[asyncio.Future[bytes]],
        count_sent: int,
        refused: ProtocolError | None,
        error: Exception,
    ) -> None:
        """The connection is gone. Decide for each publish without an OK: it fails, or is sent again."""
        publishes = list(self._sent)[len(self._sent) - len(unanswered) :]
        self._sent.clear()
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
            self._refusal = str(refused)
        self._waiting.extendleft(reversed(again))
        if self._closed:
            self._fail_waiting(ConnectFailed("the producer was closed"))

    def _lost(self, member: MemberConnection, error: Exception | None) -> None:
        if self._member is not member:
            return
        self._member = None
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        self._emit(Disconnected(member.address, error))
        if self._search is not None:
            self._search.cancel()  # it passes over this member; the next one does not
        elif self._waiting:
            self._look_for_primary()

    def _heed_silence(self) -> None:
        """Nothing was answered for a while: another member may lead by now."""
        self._silence_timer = None
        connection = self._connection
        if connection is None or not self._sent:
            return
        now = connection.loop.time()
        if now - self._answered_at >= _SILENT:
            self._look_for_primary(skip=connection.address)
        left = self._answered_at + _SILENT - now
        self._silence_timer = connection.loop.call_later(
            left if left > _FINEST else _SILENT, self._heed_silence
        )

    # ---- the primary

    def _look_for_primary(self, skip: str | None = None) -> None:
        """Begin a search unless there is one. `skip` is the member that is connected and silent."""
        if self._closed or self._search is not None:
            return
        self._search = asyncio.create_task(self._follow_primary(skip), name=f"{self._members}")
        self._search.add_done_callback(self._search_ended)

    async def _follow_primary(self, skip: str | None) -> None:
        delay = next(self._delays) if self._delays is not None else 0.0
        if self._delays is None:
            self._delays = group_delays(self._config).delays()
        if delay and skip is None:
            await asyncio.sleep(delay)
        search = PrimarySearch(self._members, self._config, self._emit, self._failures)
        skipped = {skip} if skip is not None else set()
        while True:
            found = await search.find(skipped)
            before = self._member
            if before is None or not before.open or not found.is_same_nsqd(before):
                break
            found.abort()  # the silent member has another address, too
            skipped.add(found.address)
        if before is not None:
            try:
                await self._leave(before, f"it is silent and {found.address} leads")
            except BaseException:
                found.abort()
                raise
        self._take(found)

    async def _leave(self, member: MemberConnection, why: str) -> None:
        """Return when a connection is gone and what it leaves is known: it may have to be sent again."""
        self._member = None
        error = ConnectionLost(f"{member.address}: {why}")
        member.abort(error)
        assert member.connection is not None
        await member.connection.wait_closed()
        self._emit(Disconnected(member.address, error))

    def _take(self, found: MemberConnection) -> None:
        connection = found.connection
        assert connection is not None
        if not connection.open:  # it was lost meanwhile
            return
        self._member = found
        self._limits = SizeLimits(self._config, connection.identify_response)
        found.on_lost = self._lost
        connection.heir = self._inherit
        connection.on_room = self._answers_came
        logger.info("%s: %s leads", self._members, found.address)
        self._emit(Connected(found.address))

    def _search_ended(self, search: asyncio.Task[None]) -> None:
        self._search = None
        if self._closed:
            return
        if not search.cancelled() and (error := search.exception()) is not None:
            if not isinstance(error, ConnectFailed):
                logger.error("%s: the search for the primary failed", self._members, exc_info=error)
                error = ConnectFailed(f"{self._members}: {error!r}")
            if self._member is None:
                self._fail_waiting(error)
                self._wake_connected(error)
        elif self._connection is not None:
            self._wake_connected(None)
        elif self._connected is not None:
            self._look_for_primary()
        self._send()

    def _fail_waiting(self, error: ConnectFailed) -> None:
        """Nothing of what waits can be sent."""
        waiting, self._waiting = self._waiting, deque()
        for publish in waiting:
            if publish.future.done():
                continue
            if publish.maybe_stored:
                publish.future.set_exception(OutcomeUnknown(str(error)))
            else:
                publish.future.set_exception(ConnectFailed(str(error), permanent=error.permanent))

    def _wake_connected(self, error: ConnectFailed | None) -> None:
        connected, self._connected = self._connected, None
        if connected is not None and not connected.done():
            if error is not None:
                connected.set_exception(error)
            else:
                connected.set_result(None)

    async def _primary(self, timeout: float) -> NsqdConnection[Message]:
        """The connection to the primary. Raises ConnectFailed."""
        try:
            async with asyncio.timeout(timeout):
                while (connection := self._connection) is None or not connection.open:
                    if self._closed:
                        raise ConnectFailed("the producer was closed")
                    if self._connected is None:
                        self._connected = asyncio.get_running_loop().create_future()
                    self._look_for_primary()
                    await asyncio.shield(self._connected)
                return connection
        except TimeoutError:
            raise ConnectFailed(f"{self._members} has no primary: {self._reasons()}") from None

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
        self._waiting = deque(each for each in self._waiting if not each.future.done())
        late = [each for each in self._waiting if each.deadline <= now]
        for publish in late:
            publish.future.set_exception(
                PublishTimeout(
                    f"{self._members} has not stored it in time: {self._reasons()}", sent=publish.maybe_stored
                )
            )
        if late:
            self._waiting = deque(each for each in self._waiting if not each.future.done())
        unanswered = [each for each in self._sent if not each.future.done()]
        for publish in unanswered:
            if publish.deadline <= now:
                address = self._member.address if self._member is not None else "the primary"
                publish.future.set_exception(
                    PublishTimeout(f"{self._members}: no answer from {address} in time", sent=True)
                )
        ahead = [each.deadline for each in (*self._waiting, *unanswered) if each.deadline > now]
        if ahead:
            self._expire_at(min(ahead))

    def _reasons(self) -> str:
        """Why nothing is stored, with each address that was tried."""
        addresses = self._members.addresses
        if not addresses:
            return f"no node that {self._members.sources} list is a member of it"
        reasons = [str(self._failures.get(each) or each) for each in addresses]
        if self._refusal:
            reasons.insert(0, self._refusal)
        return "; ".join(reasons)

    # ---- the rest

    async def split_size(self, timeout: float) -> int:
        if self._config.max_body_size is None and self._connection is None:
            await self._primary(timeout)
        return split_size(self._config, [self._limits])

    async def ping(self, timeout: float) -> None:
        """Return when the primary is connected. Raises ConnectFailed."""
        (await self._primary(timeout)).send(NOP)

    def unanswered(self) -> list[asyncio.Future[bytes]]:
        """The newest publish that waits and the newest that was sent, as futures."""
        newest = [publishes[-1].future for publishes in (self._waiting, self._sent) if publishes]
        if all(future.done() for future in newest):  # cancelled ones hide those before them
            newest = [each.future for each in (*self._waiting, *self._sent)]
        return [future for future in newest if not future.done()]

    async def close(self) -> None:
        self._closed = True
        for timer in (self._deadline_timer, self._silence_timer):
            if timer is not None:
                timer.cancel()
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        closed = ConnectFailed("the producer was closed", permanent=True)
        self._wake_connected(closed)
        self._fail_waiting(closed)
        connection = self._connection
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(self._config.write_timeout):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
                await connection.wait_closed()
