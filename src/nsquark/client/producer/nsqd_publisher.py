"""A producer's connection to one nsqd: made at the first use, and made anew whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from nsquark.errors import ConnectFailed, ConnectionLost, ProtocolError, PublishTimeout

from ..config import Config
from ..connection import NsqdConnection, connect
from ..events import Connected, ConnectionRefused, Disconnected, Event
from ..message import Message

logger = logging.getLogger(__name__)


class NsqdPublisher:
    def __init__(self, address: str, config: Config, emit: Callable[[Event], None]) -> None:
        self.address = address
        self.connection: NsqdConnection[Message] | None = None
        self._config = config
        self._emit = emit
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None  # of the attempt under way
        self._lost: asyncio.Event = asyncio.Event()
        self._failure: ConnectFailed | None = None  # of the last attempt
        self._deadlines: deque[tuple[float, asyncio.Future[bytes]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    # ---- connecting

    async def connected(self, patient: bool) -> NsqdConnection[Message]:
        """The connection, once there is one.

        Raises ConnectFailed when we are refused; and when an attempt fails, unless `patient`.
        """
        # after an error the connection is there for a moment and takes nothing any more
        while self.connection is None or not self.connection.open:
            if self._closed:
                raise ConnectFailed(f"{self.address}: the producer was closed", permanent=True)
            if self._keeper is None or self._keeper.done():
                self._failure = None
                self._news = asyncio.get_running_loop().create_future()
                self._keeper = asyncio.create_task(self._keep(), name=f"nsqd {self.address}")
            elif self._failure is not None and not patient:
                raise ConnectFailed(str(self._failure))  # it waits for its next attempt
            assert self._news is not None
            await asyncio.shield(self._news)
            if self._failure is not None and (self._failure.permanent or not patient):
                raise ConnectFailed(str(self._failure), permanent=self._failure.permanent)
        return self.connection

    async def _keep(self) -> None:
        delays = self._config.reconnect.delays()
        while True:
            try:
                self._lost = asyncio.Event()
                connection = await connect(self.address, self._config, Message, self)
                if self._lost.is_set():
                    raise ConnectFailed(f"{self.address} closed the connection")
            except ConnectFailed as error:
                self._failure = error
                delay = None if error.permanent else next(delays)
                logger.warning("no connection: %s", error)
                self._emit(ConnectionRefused(self.address, error, delay))
                self._tell()
                if delay is None:
                    return  # the next publish tries again
                await asyncio.sleep(delay)
            else:
                self._failure = None
                self.connection = connection
                delays = self._config.reconnect.delays()
                self._emit(Connected(self.address))
                self._tell()
                await self._lost.wait()
                await asyncio.sleep(next(delays) / 10)  # it may be back at once, but no hot loop

    def _tell(self) -> None:
        """Whoever waits for the outcome of an attempt."""
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        if news is not None and not news.done():
            news.set_result(None)

    # ---- the connection's side

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
        """Send a command; its future fails at the deadline if there is no answer."""
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
        """Until fewer than `max_pending` answers are awaited, and the other side takes what is sent."""
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
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._tell()
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(self._config.write_timeout):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
                await connection.wait_closed()
