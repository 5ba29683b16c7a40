"""A connection to nsqd that waits for its answers, for programs without an event loop."""

from __future__ import annotations

import socket
import struct
import time

PATIENCE = 20.0
_FRAME = struct.Struct(">qH16s")


class Wire:
    def __init__(self, port: int) -> None:
        self.port = port
        self._data = bytearray()
        self._sock = self._connect()

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        sock.sendall(b"  V2")
        return sock

    def close(self) -> None:
        self._sock.close()

    def send(self, command: bytes) -> None:
        self._sock.sendall(command)

    def frame(self, within: float = PATIENCE) -> tuple[int, bytes] | None:
        """The next frame that is no heartbeat; None if nothing comes in time. Raises ConnectionError."""
        deadline = time.monotonic() + within
        while True:
            if len(self._data) >= 4:
                (size,) = struct.unpack_from(">i", self._data)
                if len(self._data) >= 4 + size:
                    kind = struct.unpack_from(">i", self._data, 4)[0]
                    data = bytes(self._data[8 : 4 + size])
                    del self._data[: 4 + size]
                    if data == b"_heartbeat_":
                        self.send(b"NOP\n")
                        continue
                    return kind, data
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._sock.settimeout(left)
            try:
                more = self._sock.recv(1 << 18)
            except TimeoutError:
                return None
            if not more:
                raise ConnectionError("nsqd has closed the connection")
            self._data += more

    def ask(self, command: bytes) -> str:
        """What a command is answered with. Nothing may be delivered to this connection.

        nsqd closes a connection behind most errors, as NSQ does: then there is another one.
        """
        self.send(command)
        found = self.frame()
        if found is None:
            return "no answer"
        if found[0] == 1:
            self.close()
            self._sock = self._connect()
        return found[1].decode()

    def message(self, within: float) -> tuple[bytes, bytes] | None:
        """The id and the body of the next message."""
        found = self.frame(within)
        while found is not None and found[0] != 2:
            found = self.frame(within)
        return None if found is None else (found[1][10:26], found[1][26:])
