"""One TCP connection to one nsqd, after the dial: the receiving half, its timers, and its end.

`connect` dials and runs the handshake. Afterwards the connection calls its owner (a `Receiver`) for messages,
for errors that no command waits for, and once when the connection is gone. Everything here runs on the event
loop. Nothing here waits for user code, so heartbeats are answered whatever the handlers do.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

from nsquark.errors import ConnectionLost, ProtocolError, parse_error
from nsquark.wire.commands import NOP
from nsquark.wire.compression import Stream
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks
from nsquark.wire.frames import HEARTBEAT_DATA
from nsquark.wire.identify import IdentifyResponse
from nsquark.wire.message import Delivery

from ..addresses import split_address
from ..config import Config
from .command_writer import CommandWriter

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Delivery)


class Receiver(Protocol[M]):
    """The calls by which a connection tells its owner what happened."""

    def messages_received(self, messages: list[M]) -> None: ...

    def answer_failed(self, error: ProtocolError) -> None:
        """A FIN, REQ or TOUCH came too late."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone. This is called once, as the last call. None: this side closed it."""


class NsqdConnection(CommandWriter, asyncio.BufferedProtocol, Generic[M]):
    """A connection to an nsqd; `connect` makes it."""

    def __init__(self, address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> None:
        super().__init__(address, config.write_timeout)
        self.identify_response = IdentifyResponse()
        self.parser: FrameParser[M] = FrameParser(kind, receiver)
        self.last_error: ProtocolError | None = None
        self.on_room: Callable[[], None] | None = None  # called when commands were answered
        self._receiver = receiver
        self._read_timeout = config.read_timeout
        self._read_at = self.loop.time()
        self._read_timer: asyncio.TimerHandle | None = None
        self._compressed = memoryview(b"")  # the buffer that compressed bytes are read into
        self._ready = False  # until then the handshake takes the frames from the parser
        self._data_waiter: asyncio.Future[None] | None = None
        self._reason: Exception | None = None
        self._gone: asyncio.Future[None] = self.loop.create_future()

    # ---- the calls of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Some event loops call this again in start_tls, with the transport inside TLS.
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.open = True
        if self._read_timer is None:
            self._check_read_timeout()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._compressed if self._stream is not None else self.parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.open:
            return
        self._read_at = self.loop.time()
        try:
            if self._stream is None:
                self.parser.received(nbytes)
                self._dispatch()
            else:
                for piece in self._stream.decompress(self._compressed[:nbytes]):
                    self.parser.feed(piece)
                    self._dispatch()
        except ConnectionLost as error:
            self.abort(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone.done():
            return
        self.open = False
        if self._read_timer is not None:
            self._read_timer.cancel()
        reason = self._reason or exc
        error = self.last_error or ConnectionLost(
            f"{self.address}: {reason}" if reason else f"{self.address} closed the connection"
        )
        self._fail_waiters(error)
        if self._data_waiter is not None and not self._data_waiter.done():
            self._data_waiter.set_exception(error)
        self._gone.set_result(None)
        self._receiver.connection_lost(None if self._reason is _CLOSED else error)

    def _check_read_timeout(self) -> None:
        silent = self.loop.time() - self._read_at
        if silent >= self._read_timeout:
            self.abort(ConnectionLost(f"nothing was heard for {self._read_timeout} s"))
        else:
            self._read_timer = self.loop.call_later(self._read_timeout - silent, self._check_read_timeout)

    # ---- frames

    def _dispatch(self) -> None:
        if not self._ready:
            if self._data_waiter is not None and not self._data_waiter.done():
                self._data_waiter.set_result(None)
            return
        now = self._read_at
        while (event := self.parser.next_event(now)) is not None:
            if isinstance(event, Messages):
                self._receiver.messages_received(event.run)
            elif isinstance(event, Oks):
                self._answer_oks(event.count)
            elif isinstance(event, Error):
                self._error_received(parse_error(event.data))
                if self._refused is not None:
                    return  # it was nsqd's last answer, and its waiter is the heir's
            elif event.data == HEARTBEAT_DATA:
                self.send(NOP)
            elif self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(event.data)
            else:
                raise ConnectionLost(f"an answer to no question: {event.data[:100]!r}")

    def _answer_oks(self, count: int) -> None:
        waiters = self._waiters
        if count > len(waiters):
            raise ConnectionLost("an OK to no question")
        for _ in range(count):
            waiter = waiters.popleft()
            if not waiter.done():  # a publish that was cancelled or timed out is done already
                waiter.set_result(b"OK")
        if self.on_room is not None:
            self.on_room()

    def _error_received(self, error: ProtocolError) -> None:
        if not error.fatal:  # the error of a FIN, REQ or TOUCH: no future waits for these
            self._receiver.answer_failed(error)
            return
        if self._waiters and self.heir is not None:
            self._refused = error
            self._reason = ConnectionLost(f"after the error {error}")
        elif self._waiters:
            # The error answers the oldest command. nsqd closes the connection, which fails the others.
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)
            self._reason = ConnectionLost(f"after the error {error}")
        else:
            self.last_error = error
            logger.warning("%s: %s", self.address, error)
        self.open = False
        assert self._transport is not None
        if self._refused is not None:
            self._transport.abort()  # the heir waits, and nsqd reads no more
        else:
            self._transport.close()

    # ---- the handshake

    async def more_data(self) -> None:
        """Return when more bytes have come during the handshake. Raises ConnectionLost."""
        if not self.open:
            raise ConnectionLost(f"{self.address} closed the connection")
        self._data_waiter = self.loop.create_future()
        await self._data_waiter

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Send and read every further byte inside TLS."""
        assert self._transport is not None
        host, _ = split_address(self.address)
        transport = await self.loop.start_tls(self._transport, self, context, server_hostname=host)
        if transport is None:
            raise ConnectionLost(f"{self.address} closed the connection")
        self._transport = transport

    def start_compression(self, stream: Stream) -> None:
        """Send and read every further byte compressed."""
        self._compressed = memoryview(bytearray(65536))
        self._stream = stream

    def ready(self) -> None:
        """The handshake is over: from now on frames go to the waiters and to the receiver."""
        self._ready = True
        self._dispatch()

    # ---- the end

    @property
    def peer(self) -> object:
        """The address of the socket at the other end; None if it has none."""
        return self._transport.get_extra_info("peername") if self._transport is not None else None

    def close(self) -> None:
        """Send what was collected, then close."""
        if self.open:
            self._write()
            self.open = False
            self._reason = self._reason or _CLOSED
            assert self._transport is not None
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; what was not sent is lost."""
        self.open = False
        self._reason = self._reason or error or _CLOSED
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._gone)

    async def close_within(self, seconds: float) -> None:
        """`close`, and return when it is done. What nsqd does not take within so long is lost."""
        self.close()
        try:
            async with asyncio.timeout(seconds):
                await self.wait_closed()
        except TimeoutError:
            self.abort()
            await self.wait_closed()


_CLOSED = ConnectionLost("closed by us")
