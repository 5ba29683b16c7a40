"""Reading from a client: where its bytes go, when reading and parsing pause, and how both go on.

    transport or SocketPoll ─▶ get_buffer, received ─▶ CommandParser ─▶ Commands

`read_states` has the states and their order. `Connection` adds how it begins and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.errors import ConnectionLost, ProtocolError
from nsquark.kernel import Buffer
from nsquark.wire import Body, CommandParser, Event, Mpub, Pubs

from .auth.authorizations import AuthServerNeeded
from .read_states import (
    BUSY,
    ENDED,
    READING,
    RECEIVING,
    UNREAD,
    WAITING,
    ReadState,
    check_transition,
)

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.publish import PublishStream

    from .commands import Commands
    from .publishing import Publishing
    from .session import Session
    from .socket_reading import SocketReading

logger = logging.getLogger(__name__)

UNREAD_ANSWERS = 1 << 20  # a client that does not read its answers is not read from beyond this
PARSE_NS = 2_000_000  # of one connection, before others have their turn
_PUBLISHES = (Pubs, Mpub, Body)  # events; a Body may be that of a PUB


class Reading(asyncio.BufferedProtocol):
    """The part of a connection that turns bytes into commands."""

    __slots__ = (
        "_broker", "_commands", "_parser", "_publishing", "_shared", "_socket", "_stream", "_transport",
        "heard_at", "read_state", "session", "unread_since",
    )  # fmt: skip

    # Set when the connection is made.
    session: Session
    _commands: Commands
    _publishing: Publishing
    _socket: SocketReading
    _stream: PublishStream
    _transport: asyncio.Transport

    def __init__(self, broker: Broker, shared: bytearray) -> None:
        """`shared` is the read buffer of all connections."""
        options = broker.options
        self._broker = broker
        self._shared = shared
        self._parser = CommandParser(shared, options.max_msg_size, options.max_body_size)
        self.read_state: ReadState = READING
        self.unread_since = 0  # monotonic ns since when the write buffer is full; 0 if it is not
        self.heard_at = 0  # monotonic ns: the last command, or when nsqd was done with it

    # ---- what `Connection` does

    def fail(self, error: ProtocolError) -> None:
        """Tell the client, and end the connection if the error is fatal."""
        raise NotImplementedError

    def close(self) -> None:
        """Close after what has been written is out."""
        raise NotImplementedError

    def _authorize(self, needed: AuthServerNeeded, event: Event) -> None:
        """Ask the auth servers. Then comes the event again, unless the exception says what comes instead."""
        raise NotImplementedError

    # ---- the state

    def _enter(self, state: ReadState) -> None:
        check_transition(self.read_state, state)
        self.read_state = state

    @property
    def greeted(self) -> bool:
        """Whether the client has sent its magic."""
        return self._parser.greeted

    def last_heard(self) -> int:
        """When the last command came, on either way."""
        return max(self.heard_at, self._stream.heard)

    # ---- pausing

    def pause_writing(self) -> None:
        self.unread_since = monotonic_ns()
        self._publishing.stop_following(self._parser)
        if self.session.consumer is not None:
            self.session.consumer.writable = False

    def resume_writing(self) -> None:
        self.unread_since = 0
        channel, consumer = self.session.channel, self.session.consumer
        if consumer is not None and channel is not None:
            consumer.writable = True
            channel.has_room(consumer)
        if self.read_state is UNREAD:
            self._enter(READING)
        self._read_on()

    def _read_on(self) -> None:
        """Have the socket read again, unless the state or a full write buffer speaks against it."""
        if self.read_state in RECEIVING and not self.unread_since:
            self._socket.resume()

    def _check_unread(self) -> None:
        if self.read_state is READING and self._transport.get_write_buffer_size() > UNREAD_ANSWERS:
            self._enter(UNREAD)
            self._socket.pause()

    def wait(self, state: ReadState) -> None:
        """Parse and read nothing until `_go_on`."""
        self._enter(state)
        self._socket.pause()

    # ---- reading

    def get_buffer(self, sizehint: int) -> Buffer:
        if self.read_state is not READING:
            return self._shared
        if self._stream.large is not None:  # the SocketPoll does not read any more
            self._publishing.stop_following(self._parser)
        if self._stream.following:
            kept = self._stream.kept
            self._shared[: len(kept)] = kept
            return memoryview(self._shared)[len(kept) :]
        return self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """The transport has read `nbytes` to the buffer that `get_buffer` gave it."""
        stream = self._stream
        if not stream.following or self.read_state is not READING:
            self.received(nbytes)
            return
        end = len(stream.kept) + nbytes
        taken = stream.take(self._shared, 0, end, self._broker.turn.clock(), monotonic_ns())
        if taken < end:
            self.left(taken, end)

    def received(self, nbytes: int) -> None:
        """`nbytes` were read to the buffer of the parser."""
        if self.read_state is not READING:
            return  # what still comes is dropped
        taken = 0
        session = self.session
        if session.channel is not None and session.consumer is not None and self._parser.idle:
            taken = session.channel.finish_read(session.consumer, self._shared, nbytes)
            if taken:
                self.heard_at = monotonic_ns()
            if taken == nbytes:
                return
        self._parse(nbytes, taken)
        if self.unread_since:
            self._check_unread()

    def left(self, start: int, end: int) -> None:
        """The bytes [start, end) of the shared buffer were read, and the stream does not take them.

        Nor, if there are none, what it has kept.
        """
        if self.read_state is not READING:
            return
        self._publishing.stop_following(self._parser)
        if start < end:
            self._parser.put_back(memoryview(self._shared)[start:end])
        self.received(0)

    def ended(self) -> None:
        """The SocketPoll has read the end of the stream. The transport reads it again: `eof_received`."""
        self._socket.left_by_poll()
        self._socket.resume()

    # ---- parsing

    def _parse(self, nbytes: int, taken: int = 0, at_once: bool = False) -> None:
        """Do the commands in `nbytes` that were read, but for the first `taken`, which are done.

        If that takes too long, the rest is put off, unless it must be done `at_once`.
        """
        parser = self._parser
        parser.received(nbytes, taken)
        event = None
        until = monotonic_ns() + PARSE_NS
        try:
            while parser.start < parser.end:
                event = parser.next_event()
                if event is None:
                    return
                self._commands.handle(event)
                now = self.heard_at = monotonic_ns()
                if now >= until and parser.start < parser.end and self.read_state is READING and not at_once:
                    self.put_off(_nothing)
                if self.read_state is not READING:
                    parser.keep(event)
                    return
                if type(event) in _PUBLISHES and not self.unread_since:
                    self._publishing.follow(parser)
        except ProtocolError as error:
            self.fail(error)
        except AuthServerNeeded as needed:
            assert event is not None
            self._authorize(needed, parser.keep(event))
        except ConnectionLost as error:
            logger.info("PROTOCOL(V2): [%s] closing: %s", self.session.remote_address, error)
            self.close()

    def put_off(self, step: Callable[[], None]) -> None:
        """Stop parsing for this turn of the event loop. The next turn begins with `step`."""
        self.wait(BUSY)
        asyncio.get_running_loop().call_soon(self._go_on, step)

    def _go_on(self, step: Callable[[], None]) -> None:
        """Take the step that parsing has waited for, and parse on, unless the connection has ended."""
        if self.read_state not in WAITING:
            return
        self._enter(READING)
        self.heard_at = monotonic_ns()
        step()
        if self.read_state is READING:
            self._parse(0)
        if self.read_state is READING and self.unread_since:
            self._enter(UNREAD)
        self._read_on()

    def _cut_short(self) -> ProtocolError | None:
        """The error, if any, that NSQ answers when a client ends within a command."""
        if self._stream.following:
            self._publishing.stop_following(self._parser)
            self._parse(0, at_once=True)  # less than a command: what NSQ says depends on where it ends
        return None if self.read_state in ENDED else self._parser.cut_short()


def _nothing() -> None:
    pass
