"""TLS handshakes of clients: each has a limited time and size, and only so many may be under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsquark.errors import ConnectionLost

from .rate_limited_log import Seldom

if TYPE_CHECKING:
    from nsquark.wire.tls import StreamFactory, TlsStream

    from .layered_transport import Layers

logger = logging.getLogger(__name__)

RAW_BUFFER = 256 << 10
SCRATCH = 64 << 10
LONGEST_HANDSHAKE = 128 << 10  # bytes from the client; OpenSSL itself takes no certificates beyond 100 KiB
HANDSHAKE_TIMEOUT = 5.0
MAX_HANDSHAKES = 1024
HANDSHAKE_RECORD = 0x16
NOT_TLS = "tls: first record does not look like a TLS handshake"


class Handshakes:
    """The shared part of all layers of one event loop: their read buffers, and the handshakes under way.

    The number of handshakes is limited. One too many ends the oldest, which has had more time than an honest
    client needs.
    """

    def __init__(self, timeout: float = HANDSHAKE_TIMEOUT, room: int = MAX_HANDSHAKES) -> None:
        self.timeout = timeout
        self.view = memoryview(bytearray(RAW_BUFFER))  # the sockets are read to it
        self.scratch = memoryview(bytearray(SCRATCH))  # for protocols that have no buffer of their own
        self.complaints = Seldom(logger)
        self._room = room
        self._under_way: dict[TlsHandshake, None] = {}  # oldest first

    def begin(self, handshake: TlsHandshake) -> None:
        self._under_way[handshake] = None
        if len(self._under_way) > self._room:
            self.complaints.warn("TLS: more than %d handshakes at once: ending the oldest", self._room)
            next(iter(self._under_way)).fail("tls: too many handshakes at once")

    def end(self, handshake: TlsHandshake) -> None:
        self._under_way.pop(handshake, None)

    def close(self) -> None:
        for handshake in list(self._under_way):
            handshake.abort()


class TlsHandshake:
    """One handshake, from before its first byte. `Layers.handshake_over` hears how it ended."""

    __slots__ = ("_layers", "_new_stream", "_shared", "_size", "_timer", "_tls")

    def __init__(self, layers: Layers, shared: Handshakes, new_stream: StreamFactory) -> None:
        self._layers = layers
        self._shared = shared
        self._new_stream = new_stream
        self._tls: TlsStream | None = None
        self._size = 0
        self._timer = asyncio.get_running_loop().call_later(shared.timeout, self.fail, "i/o timeout")

    def received(self, data: memoryview, send: Callable[[TlsStream], None]) -> None:
        """Go on with what the client has sent; `send` sends what TLS has to say."""
        if self._tls is None:
            if data[0] != HANDSHAKE_RECORD:
                self.fail(NOT_TLS)
                return
            self._shared.begin(self)
            self._tls = self._new_stream()
        tls = self._tls
        self._size += len(data)
        tls.received(data)
        try:
            if self._size > LONGEST_HANDSHAKE:
                raise ConnectionLost("tls: handshake too long")
            finished = tls.handshake()
        except ConnectionLost as error:
            send(tls)  # the alert that says so
            self.fail(str(error))
            return
        send(tls)
        if finished:
            self.cancel()
            self._layers.handshake_over(tls, None)

    def fail(self, reason: str) -> None:
        """End it without TLS."""
        self.cancel()
        self._layers.handshake_over(None, reason)

    def cancel(self) -> None:
        """It is over, or its connection is."""
        self._timer.cancel()
        self._shared.end(self)

    def abort(self) -> None:
        self._layers.abort()
