"""One TCP connection to one nsqd: bytes in and out, the layers between, the FIFO of who waits for an answer.

`connect` takes it from the dial through the whole negotiation. Afterwards its owner (a `Receiver`) is called
for messages, for errors that nobody waited for, and once when the connection is gone. Everything here runs on
the event loop; nothing here waits for user code, so heartbeats are answered whatever the handlers do.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, cast

from nsquark.client.addresses import split_address
from nsquark.client.config import Config
from nsquark.client.negotiation import Negotiated
from nsquark.errors import ConnectFailed, ConnectionLost, OutcomeUnknown, ProtocolError, parse_error
from nsquark.wire.compression import Stream
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks
from nsquark.wire.message import Delivery

log = logging.getLogger(__name__)

MAGIC = b"  V2"
NOP = b"NOP\n"
HEARTBEAT = b"_heartbeat_"
_WRITE_AT = 64 << 10  # collected bytes that are not held back until the end of the turn
_FINS_AT = 512  # FINs likewise: the nsqd can go on while we do

M = TypeVar("M", bound=Delivery)


class Receiver(Protocol[M]):
    """What a connection tells its owner."""

    def messages_received(self, messages: list[M]) -> None: ...

    def answer_failed(self, error: ProtocolError) -> None:
        """A FIN, REQ or TOUCH came too late."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone: once, and nothing comes afterwards. None: we closed it."""


class Connection(asyncio.BufferedProtocol, Generic[M]):
    """A negotiated connection; made by `negotiation.connect`."""

    def __init__(self, address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> None:
        self.address = address
        self.config = config
        self.negotiated = Negotiated()
        self.open = False  # commands can be sent
        self.loop = asyncio.get_running_loop()
        self.last_error: ProtocolError | None = None
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._parser: FrameParser[M] = FrameParser(kind, receiver)
        self._stream: Stream | None = None
        self._scratch = memoryview(b"")
        self._waiters: deque[asyncio.Future[bytes]] = deque()
        # While negotiating, what follows an answer may belong to the next layer: it is left alone until
        # somebody asks again.
        self._negotiating = True
        self._holding = False
        self._out: list[bytes] = []
        self._out_size = 0
        self._unsent = 0  # of the waiters: those whose commands are still in _out
        self.on_room: Callable[[], None] | None = None  # called when questions were answered
        self._fins: list[bytes] = []
        self._flush_due = False
        self._heard = self.loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None
        self._reason: Exception | None = None
        self._gone: asyncio.Future[None] = self.loop.create_future()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Called again by start_tls on some loops, with the transport inside TLS.
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.open = True
        if self._watchdog is None:
            self._watch()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._stream is not None else self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.open:
            return
        self._heard = self.loop.time()
        try:
            if self._stream is None:
                self._parser.received(nbytes)
                self._dispatch()
            else:
                for piece in self._stream.decompress(self._scratch[:nbytes]):
                    self._parser.feed(piece)
                    self._dispatch()
        except ConnectionLost as error:
            self.abort(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone.done():
            return
        self.open = False
        for timer in (self._watchdog, self._stuck):
            if timer is not None:
                timer.cancel()
        reason = self._reason or exc
        error = self.last_error or ConnectionLost(
            f"{self.address}: {reason}" if reason else f"{self.address} closed the connection"
        )
        sent = len(self._waiters) - self._unsent
        for place, waiter in enumerate(self._waiters):
            if not waiter.done():
                kind = OutcomeUnknown if place < sent else ConnectFailed
                waiter.set_exception(kind(str(error)))
        self._waiters.clear()
        self._out.clear()
        self._fins.clear()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._gone.set_result(None)
        self._receiver.connection_lost(None if self._reason is _CLOSED else error)

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()
        late = ConnectionLost(f"nothing could be written for {self.config.write_timeout} s")
        self._stuck = self.loop.call_later(self.config.write_timeout, self.abort, late)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _watch(self) -> None:
        silent = self.loop.time() - self._heard
        timeout = self.config.read_timeout
        if silent >= timeout:
            self.abort(ConnectionLost(f"nothing was heard for {timeout} s"))
        else:
            self._watchdog = self.loop.call_later(timeout - silent, self._watch)

    # ---- frames

    def _dispatch(self) -> None:
        now = self._heard
        while not self._holding and (event := self._parser.next_event(now)) is not None:
            if isinstance(event, Messages):
                self._receiver.messages_received(event.run)
            elif isinstance(event, Oks):
                self._answer_oks(event.count)
            elif isinstance(event, Error):
                self._error_received(parse_error(event.data))
            elif event.data == HEARTBEAT:
                self.send(NOP)
            elif self._waiters:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(event.data)
                self._holding = self._negotiating
            else:
                raise ConnectionLost(f"an answer to no question: {event.data[:100]!r}")

    def _answer_oks(self, count: int) -> None:
        waiters = self._waiters
        if count > len(waiters):
            raise ConnectionLost("an OK to no question")
        for _ in range(count):
            waiter = waiters.popleft()
            if not waiter.done():  # or it was given up
                waiter.set_result(b"OK")
        self._holding = self._negotiating
        if self.on_room is not None:
            self.on_room()

    def _error_received(self, error: ProtocolError) -> None:
        if not error.fatal:  # nobody waits for a FIN, REQ or TOUCH
            self._receiver.answer_failed(error)
            return
        if self._waiters:
            # It is the oldest's. The rest learns of the end of the connection, which follows.
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)
            self._reason = ConnectionLost(f"after the error {error}")
        else:
            self.last_error = error
            log.warning("%s: %s", self.address, error)
        self.open = False
        assert self._transport is not None
        self._transport.close()

    # ---- sending

    def send(self, command: bytes) -> None:
        """Send a command that is not answered. It leaves at the end of the turn, with what else there is."""
        if not self.open:
            return
        if self._fins:
            self._collect_fins()
        self._out.append(command)
        self._out_size += len(command)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif self._out_size > _WRITE_AT:
            self._write()

    def send_fin(self, message_id: bytes) -> None:
        """FIN, the one command that comes in thousands."""
        self._fins.append(message_id)
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif len(self._fins) >= _FINS_AT:
            self._write()

    def ask(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a command that is answered; the future gets the answer, or the ProtocolError.

        One that is cancelled keeps its place in the line, and its answer is dropped.
        """
        waiter: asyncio.Future[bytes] = self.loop.create_future()
        if not self.open:
            waiter.set_exception(ConnectFailed(f"{self.address} is not connected"))
            return waiter
        self._waiters.append(waiter)
        self.send(command)
        self._go_on()
        return waiter

    def ask_in_pieces(self, command: Iterable[bytes], size: int) -> asyncio.Future[bytes]:
        """`ask`, for one that is open and much to be asked: what is sent is put together once a turn."""
        waiter: asyncio.Future[bytes] = self.loop.create_future()
        self._waiters.append(waiter)
        self._unsent += 1
        self._out += command
        self._out_size += size
        if not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)
        elif self._out_size > _WRITE_AT:
            self._write()
        return waiter

    @property
    def last_question(self) -> asyncio.Future[bytes] | None:
        """When this is answered, all are."""
        return self._waiters[-1] if self._waiters else None

    @property
    def unanswered(self) -> int:
        """How many questions are waiting for their answers."""
        return len(self._waiters)

    @property
    def clogged(self) -> asyncio.Future[None] | None:
        """While the other side does not take what is sent: a future for when it does again."""
        return self._writable

    def _collect_fins(self) -> None:
        fins = b"FIN " + b"\nFIN ".join(self._fins) + b"\n"
        self._fins.clear()
        self._out.append(fins)
        self._out_size += len(fins)

    def flush(self) -> None:
        """Write what was collected."""
        self._flush_due = False
        self._write()

    def _write(self) -> None:
        if self._fins:
            self._collect_fins()
        if not self._out or not self.open:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_size = self._unsent = 0
        assert self._transport is not None
        self._transport.write(data if self._stream is None else self._stream.compress(data))

    # ---- layers

    async def start_tls(self, context: object) -> None:
        """From here on inside TLS. The server says nothing between its answer and our hello."""
        assert self._transport is not None
        if self._parser.pending:
            raise ConnectionLost("bytes before the TLS handshake")
        host, _ = split_address(self.address)
        transport = await self.loop.start_tls(
            self._transport,
            self,
            context,  # type: ignore[arg-type]
            server_hostname=host,
        )
        if transport is None:
            raise ConnectionLost(f"{self.address} closed the connection")
        self._transport = transport

    def compress_with(self, stream: Stream) -> None:
        """From here on compressed, in both directions."""
        self._scratch = memoryview(bytearray(65536))
        self._stream = stream
        for piece in stream.decompress(self._parser.take_rest()):
            self._parser.feed(piece)

    def expect(self) -> asyncio.Future[bytes]:
        """A future for an answer that comes unasked: the OK behind an upgrade."""
        waiter: asyncio.Future[bytes] = self.loop.create_future()
        if self.open:
            self._waiters.append(waiter)
            self._go_on()
        else:
            waiter.set_exception(ConnectionLost(f"{self.address} closed the connection"))
        return waiter

    def _go_on(self) -> None:
        """Look at what was held back."""
        if self._holding:
            self._holding = False
            self._dispatch()

    def ready(self) -> None:
        """All layers are in place: answers and messages come as they come."""
        self._negotiating = False
        self._go_on()

    # ---- the end

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


_CLOSED = ConnectionLost("closed by us")


async def dial(address: str, config: Config, kind: type[M], receiver: Receiver[M]) -> Connection[M]:
    """The TCP connection, with the magic on its way. Raises ConnectFailed."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    local = None
    if config.local_addr is not None:
        local = split_address(config.local_addr) if ":" in config.local_addr else (config.local_addr, 0)
    try:
        async with asyncio.timeout(config.dial_timeout or None):
            transport, connection = await loop.create_connection(
                lambda: Connection(address, config, kind, receiver), host, port, local_addr=local
            )
    except TimeoutError:
        raise ConnectFailed(f"{address}: no connection within {config.dial_timeout} s") from None
    except OSError as error:
        raise ConnectFailed(f"{address}: {error.strerror or error}") from None
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.send(MAGIC)
    return connection
