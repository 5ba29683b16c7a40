"""TLS and compression between a socket and the protocol above it.

`Layers` is the protocol of the transport below, and the transport of the protocol above, which is unaware:

    socket ─▶ TLS ─▶ decompress ─▶ upper.get_buffer, buffer_updated (or data_received)
    socket ◀─ TLS ◀─ compress ◀─── upper writes, collected until the end of the loop's turn

Whatever a client sends, a turn of the loop works on it for no longer than `SLICE` and hands it up in pieces;
while anything is left, or the protocol above has paused, nothing is read from the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from nsquark.errors import ConnectionLost
from nsquark.kernel import Buffer

from .addresses import name_of
from .rate_limited_log import Seldom

if TYPE_CHECKING:
    from nsquark.wire.compression import Stream
    from nsquark.wire.tls import StreamFactory, TlsStream

logger = logging.getLogger(__name__)

RAW_BUFFER = 256 << 10
FLUSH_AT = 64 << 10
SLICE = 0.004  # seconds of decoding in one turn of the loop
INPUT_SLICE = 16 << 10  # how much the decompressor gets at once, for it keeps what it has not used yet
LONGEST_HANDSHAKE = 128 << 10  # bytes from the client; OpenSSL itself takes no certificates beyond 100 KiB
HANDSHAKE_TIMEOUT = 5.0
MAX_HANDSHAKES = 1024
HANDSHAKE_RECORD = 0x16
UNREAD = 1 << 20  # bytes that wait to be read by the other side, beyond which we do not read from it
PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
NOT_TLS = "tls: first record does not look like a TLS handshake"

Upper = asyncio.Protocol | asyncio.BufferedProtocol
_NOBODY = asyncio.Protocol()  # the upper of a connection that is lost, or has none yet


class Handshakes:
    """What the layers of one event loop share: the buffer they read to, and the handshakes under way.

    There is room for so many: who makes one too many ends the oldest, which has had more time than an honest
    client needs.
    """

    def __init__(self, timeout: float = HANDSHAKE_TIMEOUT, room: int = MAX_HANDSHAKES) -> None:
        self.timeout = timeout
        self.view = memoryview(bytearray(RAW_BUFFER))  # what the sockets are read to
        self.scratch = memoryview(bytearray(FLUSH_AT))  # what goes up to who has no buffer
        self.complaints = Seldom(logger)
        self._room = room
        self._under_way: dict[Layers, None] = {}  # oldest first

    def begin(self, layers: Layers) -> None:
        self._under_way[layers] = None
        if len(self._under_way) > self._room:
            self.complaints.warn("TLS: more than %d handshakes at once: ending the oldest", self._room)
            next(iter(self._under_way)).fail("tls: too many handshakes at once")

    def end(self, layers: Layers) -> None:
        self._under_way.pop(layers, None)

    def close(self) -> None:
        for layers in list(self._under_way):
            layers.abort()


class Layers(asyncio.BufferedProtocol, asyncio.Transport):
    __slots__ = (
        "_closing", "_done", "_dry", "_eof", "_eof_told", "_fd", "_flushing", "_handshake_size", "_held",
        "_input", "_left", "_loop", "_new_tls", "_out", "_out_size", "_pieces", "_pumping", "_raw",
        "_reading", "_shared", "_stream", "_timer", "_tls", "_upper",
    )  # fmt: skip

    def __init__(self, upper: Upper, shared: Handshakes) -> None:
        super().__init__()
        self._upper = upper
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport
        self._fd = -1
        self._new_tls: StreamFactory | None = None
        self._done: Callable[[str | None], None] | None = None  # of a handshake: while there is one
        self._timer: asyncio.TimerHandle | None = None
        self._handshake_size = 0
        self._tls: TlsStream | None = None
        self._stream: Stream | None = None
        self._input = memoryview(b"")  # as it came, and not decompressed yet
        self._pieces: Iterator[Buffer] | None = None  # of what the decompressor has at hand
        self._left: memoryview | None = None  # of a piece that the upper had no room for
        self._reading = True
        self._held = False  # by the upper
        self._pumping = False  # in the next turn
        self._dry = False
        self._eof = self._eof_told = False
        self._closing = False
        self._out: list[Buffer] = []
        self._out_size = 0
        self._flushing = False

    # ---- getting between, and the layers

    def insert(self, raw: asyncio.Transport) -> None:
        """Take the place of the upper on its transport, which has paused reading."""
        self._raw = raw
        self._fd = raw.get_extra_info("socket").fileno()
        raw.set_protocol(self)
        raw.resume_reading()

    def start_tls(self, new_stream: StreamFactory, done: Callable[[str | None], None]) -> None:
        """Expect a handshake; `done` is told None, or why there is no TLS: then all is as it was before."""
        self._new_tls = new_stream
        self._done = done
        self._timer = self._loop.call_later(self._shared.timeout, self.fail, "i/o timeout")

    def compress_with(self, stream: Stream) -> None:
        """In both directions, from here on."""
        self.flush()
        self._stream = stream

    @property
    def tls(self) -> TlsStream | None:
        return self._tls

    # ---- the handshake

    def _shake(self, data: memoryview) -> None:
        assert self._new_tls is not None
        if self._tls is None:
            if data[0] != HANDSHAKE_RECORD:
                self.fail(NOT_TLS)
                return
            self._shared.begin(self)
            self._tls = self._new_tls()
        self._handshake_size += len(data)
        self._tls.received(data)
        try:
            if self._handshake_size > LONGEST_HANDSHAKE:
                raise ConnectionLost("tls: handshake too long")
            finished = self._tls.handshake()
        except ConnectionLost as error:
            self._send_tls()  # the alert that says so
            self.fail(str(error))
            return
        self._send_tls()
        if finished:
            self._handshake_over(None)
            self._pump()

    def fail(self, reason: str) -> None:
        """End the handshake, if there is one."""
        if self._done is not None:
            self._tls = None
            self._handshake_over(reason)

    def _handshake_over(self, reason: str | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._shared.end(self)
        done, self._done = self._done, None
        if done is not None:
            done(reason)

    def _send_tls(self) -> None:
        data = self._tls.to_send() if self._tls is not None else b""
        if data and not self._raw.is_closing():
            self._raw.write(data)

    # ---- called by the transport below

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._done = None
        self._handshake_over(None)
        self._drop()
        self._out.clear()
        self._upper.connection_lost(exc)
        # The upper refers to its transport, which this is. OpenSSL and the decompressor hold buffers.
        self._upper = _NOBODY
        self._tls = self._stream = self._new_tls = None

    def _drop(self) -> None:
        """Forget what came and is not handed up."""
        self._input = memoryview(b"")
        self._left = self._pieces = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._shared.view[:nbytes]
        if self._closing:
            return
        if self._done is not None:
            self._shake(data)
            return
        if self._tls is not None:
            self._tls.received(data)
        else:
            self._input = memoryview(bytes(data))
        self._pump()

    def eof_received(self) -> bool:
        self._eof = True
        if self._done is not None:
            self.fail("EOF")
        else:
            self._pump()
        return True

    def pause_writing(self) -> None:
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        self._upper.resume_writing()
        self._pump_later()

    # ---- the way up

    def _pump(self) -> None:
        """Hand up what there is, as far as the upper and this turn's time allow."""
        self._pumping = False
        if self._done is not None:
            return
        until = perf_counter() + SLICE
        while not self._held and not self._closing:
            self._dry = False
            try:
                self._hand_up(until)
            except ConnectionLost as error:
                self._shared.complaints.warn("what %s sends cannot be read: %s", self._peer(), error)
                self._drop()
                self._eof = self._dry = True  # for the upper it ends here
            if self._dry:
                self._run_dry()
                return
            if perf_counter() > until:
                self._pump_later()
                break
        self._read(False)

    def _pump_later(self) -> None:
        if not self._pumping and not self._closing:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _run_dry(self) -> None:
        """All that came is handed up: read on, or tell the upper that it was the end."""
        if self._tls is not None:
            self._send_tls()  # what the other side's records ask for, such as a new key
            self._eof = self._eof or self._tls.ended
        if self._held or self._closing:
            self._read(False)
        elif not self._eof:
            # such answers must not pile up either, if nobody reads them
            self._read(self._raw.get_write_buffer_size() <= UNREAD)
        elif not self._eof_told:
            self._eof_told = True
            self._read(False)
            if not self._upper.eof_received():
                self.close()

    def _hand_up(self, until: float) -> None:
        upper = self._upper
        if isinstance(upper, asyncio.BufferedProtocol):
            if filled := self._fill(memoryview(upper.get_buffer(-1))[:FLUSH_AT], until):
                upper.buffer_updated(filled)
        elif filled := self._fill(self._shared.scratch, until):
            upper.data_received(bytes(self._shared.scratch[:filled]))

    def _fill(self, room: memoryview, until: float) -> int:
        """Put as much into the room as there is; how much that was."""
        size, filled = len(room), 0
        while filled < size:
            piece = self._left
            if piece is None:
                found = self._piece(until)
                if not found:
                    break
                piece = memoryview(found)
            count = min(len(piece), size - filled)
            room[filled : filled + count] = piece[:count]
            filled += count
            self._left = piece[count:] if count < len(piece) else None
            if perf_counter() > until:
                break
        return filled

    def _piece(self, until: float) -> Buffer:
        """The next piece of what was said; nothing when the time is up, or all is said: then it is `_dry`."""
        while True:
            if self._pieces is not None:
                for piece in self._pieces:
                    return piece
                self._pieces = None
                if perf_counter() > until:
                    return b""
            data: Buffer
            if self._tls is not None:
                data = self._tls.read()
            else:
                data, self._input = self._input[:INPUT_SLICE], self._input[INPUT_SLICE:]
            if not data:
                self._dry = True
                return b""
            if self._stream is None:
                return data
            self._pieces = self._stream.decompress(data)

    def _read(self, on: bool) -> None:
        if on is not self._reading and not self._raw.is_closing():
            self._reading = on
            if on:
                self._raw.resume_reading()
            else:
                self._raw.pause_reading()

    def pause_reading(self) -> None:
        self._held = True
        self._read(False)

    def resume_reading(self) -> None:
        self._held = False
        self._pump_later()

    def is_reading(self) -> bool:
        return not self._held and not self._closing

    # ---- the way down

    def write(self, data: Buffer) -> None:
        if self._closing:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size >= FLUSH_AT:
            self.flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_later)

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def _flush_later(self) -> None:
        self._flushing = False
        self.flush()

    def flush(self) -> None:
        """Send what was written."""
        data = self._encode()
        if data and not self._raw.is_closing():
            self._raw.write(data)

    def write_now(self, data: Buffer) -> None:
        """Write and send without waiting for the end of the loop's turn."""
        if not self._closing:
            self._out.append(data)
            send_at_once(self._raw, self._fd, self._encode())

    def _encode(self) -> Buffer:
        out = self._out
        if not out:
            return b""
        data: Buffer = out[0] if len(out) == 1 else b"".join(out)
        self._out, self._out_size = [], 0
        if self._stream is not None:
            data = self._stream.compress(data)
        if self._tls is not None:
            try:
                self._tls.write(data)
            except ConnectionLost as error:
                self._shared.complaints.warn("TLS with %s is broken: %s", self._peer(), error)
                self.abort()
                return b""
            data = self._tls.to_send()
        return data

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + self._out_size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def can_write_eof(self) -> bool:
        return self._raw.can_write_eof()

    def write_eof(self) -> None:
        if not self._raw.is_closing():
            self._say_goodbye()
            self._raw.write_eof()

    def _say_goodbye(self) -> None:
        self.flush()
        if self._tls is not None and self._done is None:
            self._tls.close()
            self._send_tls()

    # ---- the end

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def close(self) -> None:
        if self._closing:
            return
        if not self._raw.is_closing():
            self._say_goodbye()
        self._closing = True
        self._drop()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._drop()
        self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport below knows, but for its socket: what is written there goes past the layers."""
        return default if name == "socket" else self._raw.get_extra_info(name, default)

    def _peer(self) -> str:
        return name_of(self._raw.get_extra_info("peername"))


class TlsFirst(Layers):
    """TLS from the first byte on: the upper is made when the handshake is done."""

    __slots__ = ("_new_upper",)

    def __init__(self, new_upper: Callable[[], Upper], shared: Handshakes, new_stream: StreamFactory) -> None:
        super().__init__(_NOBODY, shared)
        self._new_tls = new_stream
        self._new_upper = new_upper

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()
        assert self._new_tls is not None
        self.start_tls(self._new_tls, self._started)

    def _started(self, reason: str | None) -> None:
        if reason is None:
            self._upper = self._new_upper()
            self._upper.connection_made(self)
            return
        self._shared.complaints.warn("HTTPS: no TLS with %s: %s", self._peer(), reason)
        if reason == NOT_TLS:
            self._raw.write(PLAIN_HTTP)
        self.close()


def send_at_once(transport: asyncio.Transport, fd: int, data: Buffer) -> None:
    """Send without waiting for the end of the loop's turn, if nothing else is on its way."""
    if not transport.is_closing() and not transport.get_write_buffer_size():
        # The descriptor is the connection's until connection_lost, and is_closing is true before that.
        try:
            sent = os.write(fd, data)
        except OSError:
            sent = 0  # full or broken: the transport finds out
        if sent == len(data):
            return
        data = data[sent:]
    transport.write(data)
