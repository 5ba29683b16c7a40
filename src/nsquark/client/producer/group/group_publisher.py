"""Publishing to the primary of a replica group, whichever member that is.

At most one connection is used at a time. `PublishQueue` keeps the publishes until the primary has stored
them; here the primary is found, gets what waits, and is left when another member leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence

from nsquark.errors import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
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
from .publish_queue import PublishQueue

logger = logging.getLogger(__name__)

_SILENT = 1.0  # seconds without an answer, after which the other members are asked whether one of them leads
_FINEST = 0.05  # seconds between two looks at a silent primary


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
        self._on_event = on_event
        self._queue = PublishQueue(self._members, max_pending, repeat_unknown, self._primary_address)
        self._member: MemberConnection | None = None
        self._limits = SizeLimits(config, IdentifyResponse())
        self._delays: Iterator[float] | None = None  # None after an answer: the next search begins at once
        self._search: asyncio.Task[None] | None = None
        self._resumed: asyncio.Future[None] | None = None  # calls `_send` when nsqd reads again
        self._connected: asyncio.Future[None] | None = None  # for callers that wait for a primary
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
        if size > self._limits.unchecked and self._member is not None:
            self._limits.check(self._member.address, command, bodies)
        future = self._queue.add(command, size, timeout, retries, bodies)
        self._send()
        return future

    def publish_nowait(
        self, command: Sequence[bytes], size: int, timeout: float, bodies: Sequence[Body] | None = None
    ) -> asyncio.Future[bytes]:
        """`publish` for a caller that does not wait. Raises PendingFull, too."""
        self._queue.check_room()
        return self.publish(command, size, timeout, 0, bodies)

    def _primary_address(self) -> str:
        return self._member.address if self._member is not None else "the primary"

    @property
    def _connection(self) -> NsqdConnection[Message] | None:
        member = self._member
        return member.connection if member is not None else None

    def _send(self, _: object = None) -> None:
        """Send what waits, as far as the primary takes it; without a primary, look for it."""
        connection, queue = self._connection, self._queue
        if connection is None or not connection.open:
            if queue.waiting:
                self._look_for_primary()
            return
        sent, limits = queue.sent, self._limits
        if not sent:
            self._answered_at = connection.loop.time()
        while queue.waiting and connection.unanswered < self._max_pending:
            if (resumed := connection.write_resumed) is not None:
                if resumed is not self._resumed:
                    self._resumed = resumed
                    resumed.add_done_callback(self._send)
                break
            publish = queue.waiting.popleft()
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
        self._queue.answered_but(connection.unanswered)
        self._answered_at = connection.loop.time()
        self._delays = None
        if self._search is not None:  # it was silent for a moment only
            self._search.cancel()
        if self._queue.waiting:
            self._send()

    def _inherit(
        self,
        unanswered: deque[asyncio.Future[bytes]],
        count_sent: int,
        refused: ProtocolError | None,
        error: Exception,
    ) -> None:
        """The connection is gone, and leaves publishes without an OK."""
        self._queue.take_back(len(unanswered), count_sent, refused, error)
        if self._closed:
            self._queue.fail_waiting(ConnectFailed("the producer was closed"))

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
        elif self._queue.waiting:
            self._look_for_primary()

    def _heed_silence(self) -> None:
        """Nothing was answered for a while: another member may lead by now."""
        self._silence_timer = None
        connection = self._connection
        if connection is None or not self._queue.sent:
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
        search = PrimarySearch(self._members, self._config, self._emit, self._queue.failures)
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
                self._queue.fail_waiting(error)
                self._wake_connected(error)
        elif self._connection is not None:
            self._wake_connected(None)
        elif self._connected is not None:
            self._look_for_primary()
        self._send()

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
            raise ConnectFailed(f"{self._members} has no primary: {self._queue.reasons()}") from None

    # ---- the rest

    async def split_size(self, timeout: float) -> int:
        if self._config.max_body_size is None and self._connection is None:
            await self._primary(timeout)
        return split_size(self._config, [self._limits])

    async def ping(self, timeout: float) -> None:
        """Return when the primary is connected. Raises ConnectFailed."""
        (await self._primary(timeout)).send(NOP)

    def unanswered(self) -> list[asyncio.Future[bytes]]:
        return self._queue.unanswered()

    async def close(self) -> None:
        self._closed = True
        self._queue.stop_expiring()
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        closed = ConnectFailed("the producer was closed", permanent=True)
        self._wake_connected(closed)
        self._queue.fail_waiting(closed)
        connection = self._connection
        if connection is not None:
            await connection.close_within(self._config.write_timeout)
