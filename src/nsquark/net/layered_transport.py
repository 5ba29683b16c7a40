"""TLS and compression between a socket and the protocol above it.

`Layers` is the protocol of the transport below, and the transport of the protocol above:

    socket ─▶ TLS ─▶ decompress ─▶ upper.get_buffer, buffer_updated (or data_received)
    socket ◀─ TLS ◀─ compress ◀─── upper writes, collected until the end of the loop's turn

In one turn of the loop `Layers` decodes for no longer than `SLICE`, and hands up the result in pieces. While
anything is left to decode, or the protocol above has paused, nothing is read from the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from nsquark.errors import ConnectionLost
from nsquark.kernel import Buffer

from .addresses import name_of
from .decoding import Decoder
from .direct_write import send_at_once
from .tls_handshake import NOT_TLS, Handshakes, TlsHandshake

if TYPE_CHECKING:
    from nsquark.wire.compression import Stream
    from nsquark.wire.tls import StreamFactory, TlsStream

FLUSH_AT = 64 << 10
SLICE = 0.004  # seconds of decoding in one turn of the loop
UNREAD = 1 << 20  # bytes that wait to be read by the other side, beyond which we do not read from it
PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

Upper = asyncio.Protocol | asyncio.BufferedProtocol
_NOBODY = asyncio.Protocol()  # the upper of a connection that is lost, or has none yet


class Layers(asyncio.BufferedProtocol, asyncio.Transport):
    __slots__ = (
        "_closing", "_done", "_eof", "_eof_told", "_fd", "_flushing", "_handshake", "_held", "_incoming",
        "_loop", "_out", "_out_size", "_pumping", "_raw", "_reading", "_shared", "_upper",
    )  # fmt: skip

    def __init__(self, upper: Upper, shared: Handshakes) -> None:
        super().__init__()
        self._upper = upper
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport
        self._fd = -1
        self._incoming = Decoder()
        self._handshake: TlsHandshake | None = None  # while there is one
        self._done: Callable[[str | None], None] | None = None  # is told how it ended
        self._reading = True
        self._held = False  # by the upper
        self._pumping = False  # in the next turn
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
        """Expect a handshake. `done` is called with None, or with the reason why there is no TLS."""
        self._done = done
        self._handshake = TlsHandshake(self, self._shared, new_stream)

    def handshake_over(self, tls: TlsStream | None, reason: str | None) -> None:
        """Called by the handshake, with what it has made or why it has made nothing."""
        self._incoming.tls = tls
        self._handshake = None
        done, self._done = self._done, None
        if done is not None:
            done(reason)

    def compress_with(self, stream: Stream) -> None:
        """In both directions, from here on."""
        self.flush()
        self._incoming.stream = stream

    @property
    def tls(self) -> TlsStream | None:
        return self._incoming.tls

    def _send_tls(self, tls: TlsStream) -> None:
        data = tls.to_send()
        if data and not self._raw.is_closing():
            self._raw.write(data)

    # ---- called by the transport below

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._handshake is not None:
            self._handshake.cancel()
        self._handshake = self._done = None
        self._incoming.drop()
        self._out.clear()
        self._upper.connection_lost(exc)
        # The upper refers to its transport, which this is. OpenSSL and the decompressor hold buffers.
        self._upper = _NOBODY
        self._incoming = Decoder()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._shared.view[:nbytes]
        if self._closing:
            return
        if self._handshake is not None:
            self._handshake.received(data, self._send_tls)
            if self._incoming.tls is not None:
                self._pump()
            return
        self._incoming.received(data)
        self._pump()

    def eof_received(self) -> bool:
        self._eof = True
        if self._handshake is not None:
            self._handshake.fail("EOF")
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
        if self._handshake is not None:
            return
        until = perf_counter() + SLICE
        incoming = self._incoming
        while not self._held and not self._closing:
            incoming.dry = False
            try:
                self._hand_up(until)
            except ConnectionLost as error:
                self._shared.complaints.warn("what %s sends cannot be read: %s", self._peer(), error)
                incoming.drop()
                self._eof = incoming.dry = True  # for the upper it ends here
            if incoming.dry:
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
        """Everything that came is handed up: read on, or tell the upper that the client has ended."""
        tls = self._incoming.tls
        if tls is not None:
            self._send_tls(tls)  # what the other side's records ask for, such as a new key
            self._eof = self._eof or tls.ended
        if self._held or self._closing:
            self._read(False)
        elif not self._eof:
            # such answers must not pile up either, if the client does not read them
            self._read(self._raw.get_write_buffer_size() <= UNREAD)
        elif not self._eof_told:
            self._eof_told = True
            self._read(False)
            if not self._upper.eof_received():
                self.close()

    def _hand_up(self, until: float) -> None:
        upper = self._upper
        if isinstance(upper, asyncio.BufferedProtocol):
            if filled := self._incoming.fill(memoryview(upper.get_buffer(-1)), until):
                upper.buffer_updated(filled)
        elif filled := self._incoming.fill(self._shared.scratch, until):
            upper.data_received(bytes(self._shared.scratch[:filled]))

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

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand up to another protocol, also the rest of what has come."""
        self._upper = cast(Upper, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._upper

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
            send_at_once(self._raw, self._fd, data)

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
        stream, tls = self._incoming.stream, self._incoming.tls
        if stream is not None:
            data = stream.compress(data)
        if tls is not None:
            try:
                tls.write(data)
            except ConnectionLost as error:
                self._shared.complaints.warn("TLS with %s is broken: %s", self._peer(), error)
                self.abort()
                return b""
            data = tls.to_send()
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
        tls = self._incoming.tls
        if tls is not None:
            tls.close()
            self._send_tls(tls)

    # ---- the end

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def close(self) -> None:
        if self._closing:
            return
        if not self._raw.is_closing():
            self._say_goodbye()
        self._closing = True
        self._incoming.drop()
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._incoming.drop()
        self._raw.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport below knows, without its socket: a write to that would pass the layers."""
        return default if name == "socket" else self._raw.get_extra_info(name, default)

    def _peer(self) -> str:
        return name_of(self._raw.get_extra_info("peername"))


class TlsFirst(Layers):
    """TLS from the first byte on: the upper is made when the handshake is done."""

    __slots__ = ("_new_stream", "_new_upper")

    def __init__(self, new_upper: Callable[[], Upper], shared: Handshakes, new_stream: StreamFactory) -> None:
        super().__init__(_NOBODY, shared)
        self._new_stream = new_stream
        self._new_upper = new_upper

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()
        self.start_tls(self._new_stream, self._started)

    def _started(self, reason: str | None) -> None:
        if reason is None:
            self._upper = self._new_upper()
            self._upper.connection_made(self)
            return
        self._shared.complaints.warn("HTTPS: no TLS with %s: %s", self._peer(), reason)
        if reason == NOT_TLS:
            self._raw.write(PLAIN_HTTP)
        self.close()
