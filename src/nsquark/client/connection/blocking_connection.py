"""A connection to an nsqd for a thread without an event loop: each call returns when its work is done.

It publishes and does not subscribe. Spark's executors use it. The rules of the handshake are those of every
client: `wire/handshake.py`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping

from nsquark.errors import ConnectionLost, parse_error
from nsquark.wire import handshake as v2
from nsquark.wire.commands import NOP
from nsquark.wire.compression import Stream
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks
from nsquark.wire.frames import HEARTBEAT_DATA, OK_DATA
from nsquark.wire.handshake import AuthSecretMissing, TlsNotOffered
from nsquark.wire.identify import IdentifyResponse
from nsquark.wire.message import Delivery

from ..addresses import split_address

__all__ = ["AuthSecretMissing", "BlockingConnection", "ConnectionClosed", "TlsNotOffered"]

_MAX_ANSWER = 1 << 20
_READ = 1 << 16


class ConnectionClosed(ConnectionLost):
    """nsqd has closed the connection. Any other ConnectionLost says that the other side does not speak V2."""


class BlockingConnection:
    """A TCP connection to an nsqd. `shake_hands` makes it ready for commands.

    Every method raises OSError when the connection is lost (ConnectionLost is one) and ProtocolError when
    nsqd answers with an error.
    """

    def __init__(self, address: str, timeout: float) -> None:
        """Dial. `timeout` bounds the dial and every later wait for the socket."""
        self.address = address
        self._host, port = split_address(address)
        self._socket = socket.create_connection((self._host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._parser: FrameParser[Delivery] = FrameParser(Delivery, None, _MAX_ANSWER)
        self._stream: Stream | None = None
        self._oks = 0  # parsed and not yet handed out

    def close(self) -> None:
        self._socket.close()

    # ---- the handshake

    def identify(self, document: Mapping[str, object]) -> IdentifyResponse:
        """Send IDENTIFY alone, for a client that only wants to read the answer."""
        handshake = v2.Handshake(self.address, self._parser, document)
        while not isinstance(self._step(handshake, None), v2.Identified):
            pass
        return handshake.response

    def shake_hands(
        self, document: Mapping[str, object], context: ssl.SSLContext | None, auth_secret: str | None
    ) -> IdentifyResponse:
        """The whole handshake. `context` is for TLS, if `document` asks for it.

        Raises TlsNotOffered and AuthSecretMissing too.
        """
        handshake = v2.Handshake(self.address, self._parser, document, auth_secret=auth_secret)
        while not isinstance(self._step(handshake, context), v2.Ready):
            pass
        return handshake.response

    def _step(self, handshake: v2.Handshake, context: ssl.SSLContext | None) -> v2.Event:
        event = handshake.next_event()
        if data := handshake.data_to_send():
            self.send(data)
        match event:
            case v2.NeedData():
                self._read()
            case v2.StartTls():
                assert context is not None
                self._socket = context.wrap_socket(self._socket, server_hostname=self._host)
            case v2.StartCompression(stream):
                self._stream = stream
        return event

    # ---- commands and answers

    def send(self, data: bytes) -> None:
        self._socket.sendall(data if self._stream is None else self._stream.compress(data))

    def read_response(self) -> bytes:
        """The next answer that is no heartbeat."""
        while not self._oks:
            match self._parser.next_event(0.0):
                case None:
                    self._read()
                case Oks(count):
                    self._oks = count
                case Error(data):
                    raise parse_error(data)
                case Messages():
                    raise ConnectionLost("a message without a subscription")
                case response if response.data == HEARTBEAT_DATA:
                    self.send(NOP)
                case response:
                    return response.data
        self._oks -= 1
        return OK_DATA

    def _read(self) -> None:
        if self._stream is None:
            count = self._socket.recv_into(self._parser.get_buffer())
            self._parser.received(count)
        else:
            data = self._socket.recv(_READ)
            count = len(data)
            for piece in self._stream.decompress(data):
                self._parser.feed(piece)
        if not count:
            raise ConnectionClosed(f"{self.address} has closed the connection")
