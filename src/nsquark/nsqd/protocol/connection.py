"""One TCP client, from its connection to its end.

    transport or SocketPoll ─▶ Reading ─▶ Commands ─▶ topic, channel
                                        │
    transport ◀── answers, messages ◀───┘

`Reading` turns bytes into commands and keeps the state. The session knows the client, `Commands` does what
the parser finds, `Publishing` has the short way of publishes. Answers go out in order; messages and
heartbeats may come between.

An upgrade (TLS, snappy, deflate) puts `Layers` between the transport and the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.errors import ProtocolError
from nsquark.kernel import Buffer
from nsquark.nsqd.core.answers import AnswerQueue
from nsquark.nsqd.core.timers import Timers
from nsquark.wire import Event, pack_error

from .auth.authorizations import AuthServerNeeded
from .commands import Commands
from .heartbeat import Heartbeat
from .publishing import Publishing
from .read_states import (
    AUTHORIZING,
    CLOSED,
    CLOSING,
    DISCARDING,
    ENDED,
    HALF_CLOSED,
    LINGERING,
    READING,
    UPGRADING,
)
from .reading import Reading
from .session import Session
from .socket_reading import SocketReading

if TYPE_CHECKING:
    from nsquark.net.layered_transport import Layers
    from nsquark.nsqd.broker import Broker

    from .auth.auth_servers import Credentials
    from .negotiation import Upgrades

logger = logging.getLogger(__name__)

HIGH_WATER = 256 << 10
LINGER = 1.0  # how long a failed connection stays half open, so that its error is not lost in a reset
PATIENCE = 10.0  # how long a closed connection may take to read what it was sent


class Connection(Reading):
    __slots__ = ("_answers", "_deadline", "_query", "heartbeat", "write")

    _answers: AnswerQueue
    write: Callable[[Buffer], None]
    """For messages and heartbeats, which need not wait for the answers before them."""

    def __init__(self, broker: Broker, timers: Timers, shared: bytearray) -> None:
        """`shared` is the read buffer of all connections, `timers` count time.monotonic_ns."""
        super().__init__(broker, shared)
        self._query: asyncio.Task[None] | None = None  # to the auth servers
        self._deadline: asyncio.TimerHandle | None = None  # of lingering and of closing
        self.heartbeat = Heartbeat(self, timers)

    @property
    def pub_counts(self) -> dict[str, int]:
        """How many messages the client has published to each topic."""
        return self._publishing.counts()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    # ---- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        broker = self._broker
        self._transport = transport
        self.write = transport.write
        answers = self._answers = AnswerQueue(transport.write, self._end)
        answers.send_past(transport)
        self.session = Session(broker.options, transport, broker.client_auth(self._auth_expired))
        self._publishing = Publishing(broker, self.session, answers)
        self._stream = self._publishing.stream
        self._commands = Commands(self, broker, self._parser, answers, self._publishing)
        self._socket = SocketReading(self, transport, broker.poll, answers.fd, self._stream)
        transport.set_write_buffer_limits(HIGH_WATER)
        if broker.stopping:
            self.abort()
            return
        broker.connections.add(self)
        logger.info("TCP: new client(%s)", self.session.remote_address)
        self.heard_at = monotonic_ns()
        self.heartbeat.set_interval(self.session.settings.heartbeat_interval)
        # The transport begins to read when this returns.
        asyncio.get_running_loop().call_soon(self._join_poll)

    def _join_poll(self) -> None:
        if self.read_state is READING:
            self._socket.join_poll()

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(CLOSED)
        self._broker.connections.discard(self)
        self.heartbeat.stop()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._query is not None:
            self._query.cancel()
        self._leave()
        self._break_cycles()
        logger.info("PROTOCOL(V2): [%s] exiting ioloop", self.session.remote_address)

    def _break_cycles(self) -> None:
        """Let go of every object that refers back to the connection.

        The connection is then freed with the last reference to it. The garbage collector would come much
        later: it counts objects, and a connection with megabytes of an MPUB is as few objects as any other.
        """
        self._socket.let_go()
        self._answers.let_go()
        self._commands.let_go()
        self._publishing.let_go()
        self.session.let_go()
        self._deadline = self._query = None

    def lost(self, error: int) -> None:
        """The socket is broken: the client cannot read the answers that it is still owed."""
        self._socket.left_by_poll()
        logger.info("PROTOCOL(V2): [%s] closing: %s", self.session.remote_address, os.strerror(error))
        self.abort()

    def failed(self, error: Exception) -> None:
        """Handling what was received has raised an unexpected error."""
        logger.error("PROTOCOL(V2): [%s] failed", self.session.remote_address, exc_info=error)
        self.abort()

    def _authorize(self, needed: AuthServerNeeded, event: Event) -> None:
        """Ask the auth servers. Then comes the event again, unless the exception says what comes instead."""
        self.wait(AUTHORIZING)
        step = needed.then or partial(self._commands.handle, event)
        self._query = asyncio.get_running_loop().create_task(self._ask(needed.who, step))

    async def _ask(self, who: Credentials | None, step: Callable[[], None]) -> None:
        assert self.session.auth is not None
        try:
            await self.session.auth.query(who)
            self._query = None
            self._go_on(step)
        except ProtocolError as error:
            self._query = None
            self.fail(error)

    def _auth_expired(self) -> None:
        """Have the next publish checked again: on the short way it would not be."""
        self._publishing.stop_following(self._parser)
        self._publishing.forget_topic()

    # ---- upgrades

    def upgrade(self, upgrades: Upgrades, answer: bytes) -> None:
        """Put layers below, when the client has been sent `answer` and every answer before it."""
        self.wait(UPGRADING)
        self._parser.let_go()  # what came behind the IDENTIFY is of neither protocol
        self._answers.say_then(answer, partial(self._begin_upgrade, upgrades))

    def _begin_upgrade(self, upgrades: Upgrades) -> None:
        from .upgrades import upgrade

        upgrade(self, self._transport, self._broker, upgrades)

    def write_through(self, layers: Layers) -> None:
        self._transport = self.session.layers = layers
        self._socket.read_through(layers)
        self.write = layers.write
        self._answers.write_through(layers.write, layers.write_now)

    def upgraded(self, upgrades: Upgrades) -> None:
        self._go_on(partial(self.session.upgraded, upgrades))

    # ---- the end

    def eof_received(self) -> bool:
        error = self._cut_short()
        if self._answers.closed:
            self.close()
            return True
        self._enter(HALF_CLOSED)
        if error is not None:
            self.fail(error)
        else:
            self._parser.let_go()
            self._answers.say(b"", last=True)
        return True

    def fall_silent(self) -> None:
        """The client was silent for too long: end the connection as if the client had closed its half."""
        error = self._cut_short()
        if error is not None:
            self.fail(error)
        else:
            logger.info("PROTOCOL(V2): [%s] closing: silent for too long", self.session.remote_address)
            self.close()

    def fail(self, error: ProtocolError) -> None:
        """Tell the client, and end the connection if the error is fatal."""
        logger.error("PROTOCOL(V2): [%s] - %s", self.session.remote_address, error)
        if error.fatal and self.read_state not in ENDED:
            self._enter(DISCARDING)
            self._read_on()
        if error.fatal:
            self._parser.let_go()  # the answer may wait for others, and what has come is not parsed meanwhile
        self._answers.say(pack_error(error.pack()), last=error.fatal)

    def _end(self) -> None:
        """The last answer is written."""
        self._leave()
        if self._transport.is_closing():
            return
        if self.read_state is HALF_CLOSED:
            self.close()
            return
        # Closing with something of the client unread would reset the connection and could take the answer
        # with it: close our half, and wait a little for the other.
        self._enter(LINGERING)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._read_on()
        self._deadline = asyncio.get_running_loop().call_later(LINGER, self.close)

    def close(self) -> None:
        """Close after what has been written is out, or after a while if the client does not read it."""
        self._enter(CLOSING)
        self._leave()
        self._socket.leave_poll()
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport.close()
        self._deadline = asyncio.get_running_loop().call_later(PATIENCE, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.read_state is not CLOSED:
            self._enter(CLOSING)
        self._leave()
        self._socket.leave_poll()
        self._transport.abort()

    def _leave(self) -> None:
        """Nothing more is said, and no more messages are taken."""
        self._publishing.stop_following(self._parser)
        self._parser.let_go()
        self._answers.ended = self._answers.closed = True
        self.session.unsubscribe()
