"""Publishing to one nsqd: its connection, made at the first use and after every loss, and deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from nsquark.errors import ConnectFailed, ConnectionLost, ProtocolError, PublishTimeout
from nsquark.wire.identify import IdentifyResponse

from ..config import Config
from ..connection import NsqdConnection, connect
from ..events import Connected, ConnectionRefused, Disconnected, Event
from ..message import Message
from .size_limits import SizeLimits

logger = logging.getLogger(__name__)


class NsqdPublisher:
    """One nsqd of a producer."""

    def __init__(self, address: str, config: Config, emit: Callable[[Event], None]) -> None:
        self.address = address
        self.connection: NsqdConnection[Message] | None = None
        self.limits = SizeLimits(config, IdentifyResponse())  # of the connection
        self._config = config
        self._emit = emit
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None  # done when the attempt to connect has ended
        self._lost: asyncio.Event = asyncio.Event()
        self.failure: ConnectFailed | None = None  # of the last attempt to connect
        self._deadlines: deque[tuple[float, asyncio.Future[bytes]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    # ---- connecting

    async def connected(self, patient: bool) -> NsqdConnection[Message]:
        """The connection, once there is one.

        Raises ConnectFailed when nsqd refuses the client, and, unless `patient`, when an attempt fails.
        """
        # After an error of nsqd the connection exists for a moment, closed for commands.
        while self.connection is None or not self.connection.open:
            if self._closed:
                raise ConnectFailed(f"{self.address}: the producer was closed", permanent=True)
            if self._connecting is None or self._connecting.done():
                self.failure = None
                self._attempt = asyncio.get_running_loop().create_future()
                self._connecting = asyncio.create_task(self._keep_connected(), name=f"nsqd {self.address}")
            elif self.failure is not None and not patient:
                raise ConnectFailed(str(self.failure)) from self.failure  # the next attempt is not yet due
            assert self._attempt is not None
            await asyncio.shield(self._attempt)
            if self.failure is not None and (self.failure.permanent or not patient):
                raise ConnectFailed(str(self.failure), permanent=self.failure.permanent) from self.failure
        return self.connection

    async def _keep_connected(self) -> None:
        delays = self._config.reconnect.delays()
        while True:
            try:
                self._lost = asyncio.Event()
                connection = await connect(self.address, self._config, Message, self)
                if self._lost.is_set():
                    raise ConnectFailed(f"{self.address} closed the connection")
            except ConnectFailed as error:
                self.failure = error
                delay = None if error.permanent else next(delays)
                logger.warning("no connection: %s", error)
                self._emit(ConnectionRefused(self.address, error, delay))
                self._attempt_ended()
                if delay is None:
                    return  # the next publish tries again
                await asyncio.sleep(delay)
            else:
                self.failure = None
                self.connection = connection
                self.limits = SizeLimits(self._config, connection.identify_response)
                delays = self._config.reconnect.delays()
                self._emit(Connected(self.address))
                self._attempt_ended()
                await self._lost.wait()
                await asyncio.sleep(
                    next(delays) / 10
                )  # nsqd may be back at once; without this, a broken one is dialled in a loop

    def _attempt_ended(self) -> None:
        """Wake the callers of `connected` up."""
        attempt, self._attempt = self._attempt, asyncio.get_running_loop().create_future()
        if attempt is not None and not attempt.done():
            attempt.set_result(None)

    # ---- the calls of the connection

    def messages_received(self, messages: list[Message]) -> None:
        for message in messages:
            message.answered = True
        if self.connection is not None:
            self.connection.abort(ConnectionLost("a message without a subscription"))

    def answer_failed(self, error: ProtocolError) -> None:
        logger.warning("%s: %s", self.address, error)

    def connection_lost(self, error: Exception | None) -> None:
        was_connected, self.connection = self.connection is not None, None
        self._lost.set()
        self._make_room()
        if was_connected:
            self._emit(Disconnected(self.address, error))

    # ---- publishing

    def ask(
        self, connection: NsqdConnection[Message], command: Iterable[bytes], size: int, deadline: float
    ) -> asyncio.Future[bytes]:
        """Send a command. Its future fails at the deadline if nsqd has not answered."""
        waiter = connection.ask_in_pieces(command, size)
        deadlines = self._deadlines
        while deadlines and deadlines[0][1].done():  # answers come in order
            deadlines.popleft()
        deadlines.append((deadline, waiter))
        if self._timer is None or deadline < self._timer.when():
            self._arm(deadline)
        return waiter

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(deadline, loop.time() + 0.001), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        left = deque(each for each in self._deadlines if not each[1].done())
        self._deadlines = deque()
        for deadline, waiter in left:
            if deadline <= now:
                waiter.set_exception(PublishTimeout(f"{self.address}: no answer in time", sent=True))
            else:
                self._deadlines.append((deadline, waiter))
        if self._deadlines:
            self._arm(min(deadline for deadline, _ in self._deadlines))

    async def room(self, connection: NsqdConnection[Message], max_pending: int) -> None:
        """Return when fewer than `max_pending` commands are unanswered and nsqd reads what is sent."""
        while connection.open:
            resumed = connection.write_resumed
            if resumed is not None:
                await asyncio.shield(resumed)
            elif connection.unanswered >= max_pending:
                if self._room is None:
                    self._room = asyncio.get_running_loop().create_future()
                    connection.on_room = self._make_room
                await asyncio.shield(self._room)
            else:
                return

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if self.connection is not None:
            self.connection.on_room = None
        if room is not None:
            room.set_result(None)

    # ---- the end

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        connection = self.connection
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._attempt_ended()
        if connection is not None:
            await connection.close_within(self._config.write_timeout)
