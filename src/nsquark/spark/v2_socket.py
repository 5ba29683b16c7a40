"""A blocking V2 connection to an nsqd, for commands and their responses.

`wire` parses the frames. The connection never subscribes, so nsqd sends no messages over it.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from typing import Any

from nsquark.errors import ConnectionLost
from nsquark.net.addresses import split_address
from nsquark.wire.frame_parser import Error, FrameParser, Messages, Oks
from nsquark.wire.message import Delivery

_MAX_FRAME = 1 << 20
_SIZE = struct.Struct(">I")


class ErrorFrame(Exception):
    """nsqd answered with an error frame: `data` is its code, a space and its text."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data.decode("utf-8", "replace"))
        self.data = data


class ConnectionClosed(ConnectionError):
    """nsqd has closed the connection."""


class V2Socket:
    """Every method raises OSError when the connection fails.

    An OSError that is a ConnectionLost says that the other side does not speak V2.
    """

    def __init__(self, address: str, timeout: float) -> None:
        host, port = split_address(address)
        self._host = host
        self._parser: FrameParser[Delivery] = FrameParser(Delivery, None, _MAX_FRAME)
        self._oks = 0  # OK frames that were parsed and not yet returned
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> V2Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def identify(self, document: dict[str, object]) -> dict[str, Any]:
        """Send the magic and IDENTIFY; the JSON object that nsqd answers with.

        Raises ErrorFrame, and ValueError with the response if it is no JSON object.
        """
        self._send_with_body(b"  V2IDENTIFY\n", json.dumps(document).encode())
        response = self.read_response()
        try:
            answer = json.loads(response)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ValueError(repr(response[:60]))
        return answer

    def authenticate(self, secret: str) -> None:
        """Send AUTH. Raises ErrorFrame."""
        self._send_with_body(b"AUTH\n", secret.encode())
        self.read_response()

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the TLS handshake that nsqd has agreed to in its answer to IDENTIFY. nsqd then sends an OK."""
        self._socket = context.wrap_socket(self._socket, server_hostname=self._host)

    def read_response(self) -> bytes:
        """The data of the next response that is not a heartbeat. Raises ErrorFrame."""
        while True:
            if self._oks:
                self._oks -= 1
                return b"OK"
            event = self._parser.next_event(0.0)
            if event is None:
                self._receive()
            elif isinstance(event, Oks):
                self._oks = event.count
            elif isinstance(event, Error):
                raise ErrorFrame(event.data)
            elif isinstance(event, Messages):
                raise ConnectionLost("a message without a subscription")
            elif event.data == b"_heartbeat_":
                self.send(b"NOP\n")
            else:
                return event.data

    def _receive(self) -> None:
        count = self._socket.recv_into(self._parser.get_buffer())
        if not count:
            raise ConnectionClosed("the connection was closed")
        self._parser.received(count)

    def _send_with_body(self, command: bytes, body: bytes) -> None:
        self.send(command + _SIZE.pack(len(body)) + body)
