"""Publishing from an executor: blocking sockets, several commands under way, another nsqd when one fails.

What has been sent and not answered is kept, and sent again to the next nsqd when the connection is lost: at
least once. Memory is bounded by the window.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Sequence

from nsquark.errors import NsquarkError
from nsquark.version import VERSION

from ..errors import Unreachable
from ..http import Access, why
from .options import SinkOptions

RESPONSE, ERROR = 0, 1
_FRAME = struct.Struct(">II")
_MAX_ANSWER = 1 << 20
# What another nsqd, or this one later, may well take.
_PASSING = (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED")


class PublishRefused(NsquarkError):
    """An nsqd does not take what it is sent, nor would another."""


class _Lost(Exception):
    """The connection is of no more use."""


class Connection:
    """A V2 connection that only publishes. Raises _Lost and PublishRefused."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self._access = access
        self._rest = b""
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), access.timeout)
        except OSError as error:
            raise _Lost(f"nsqd {address} cannot be reached: {error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(host.strip("[]"))
        except BaseException:
            self.close()
            raise

    def _greet(self, host: str) -> None:
        access = self._access
        tls = bool(access.ca_file or access.cert_file or not access.verify)
        asked = {
            "client_id": f"spark-{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"nsquark-spark/{VERSION}",
            "feature_negotiation": True,
            "heartbeat_interval": -1,  # nobody would read them while Spark makes the next rows
            "tls_v1": tls,
        }
        body = json.dumps(asked).encode()
        self.send(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        answer = self._answer()
        try:
            told = json.loads(answer)
        except ValueError:
            raise _Lost(f"nsqd {self.address}: no answer to IDENTIFY: {answer[:60]!r}") from None
        if told.get("tls_v1"):
            try:
                self._socket = access.ssl_context().wrap_socket(self._socket, server_hostname=host)
                self._answer()
            except ssl.SSLCertVerificationError as error:
                raise PublishRefused(
                    f"option 'tls.caFile': nsqd {self.address}: {error.verify_message}"
                ) from None
            except OSError as error:
                raise _Lost(f"nsqd {self.address}: no TLS: {why(error)}") from None
        elif tls:
            raise PublishRefused(f"option 'tls.caFile': nsqd {self.address} has no TLS")
        if told.get("auth_required"):
            if not access.secret:
                raise PublishRefused(f"option 'auth.secret': missing, and nsqd {self.address} wants it")
            secret = access.secret.encode()
            self.send(b"AUTH\n" + struct.pack(">I", len(secret)) + secret)
            self._answer()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _Lost(f"nsqd {self.address}: {why(error)}") from None

    def wait_for_ok(self) -> None:
        answer = self._answer()
        if answer != b"OK":
            raise _Lost(f"nsqd {self.address}: {answer[:60]!r} in place of OK")

    def _answer(self) -> bytes:
        """The next response that is no heartbeat."""
        while True:
            size, kind = _FRAME.unpack(self._read(_FRAME.size))
            if not 4 <= size <= _MAX_ANSWER:
                raise _Lost(f"nsqd {self.address}: an answer of {size} bytes")
            data = self._read(size - 4)
            if kind == ERROR:
                text = f"nsqd {self.address}: {data.decode('utf-8', 'replace')}"
                raise _Lost(text) if data.startswith(_PASSING) else PublishRefused(_hint(data) + text)
            if data == b"_heartbeat_":
                self.send(b"NOP\n")
            else:
                return data

    def _read(self, size: int) -> bytes:
        while len(self._rest) < size:
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise _Lost(f"nsqd {self.address}: {why(error)}") from None
            if not more:
                raise _Lost(f"nsqd {self.address} has closed the connection")
            self._rest += more
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _hint(error: bytes) -> str:
    """The option to look at."""
    if b"TLS required" in error:
        return "option 'tls.caFile': missing: "
    if error.startswith((b"E_AUTH", b"E_UNAUTHORIZED")):
        return "option 'auth.secret': "
    return ""


class Publisher:
    """Publishes commands in order, each answered in the end.

    `with Publisher(...)`: leaving it without an error means that everything is answered.
    """

    def __init__(self, addresses: Sequence[str], options: SinkOptions, first: int = 0) -> None:
        """Begins with nsqd number `first`, so that tasks spread over all of them."""
        self._addresses = addresses
        self._access = options.addresses.access
        self._window = options.window_bytes
        self._retries = options.retries
        self._interval = options.retry_interval
        self._next = first
        self._connection: Connection | None = None
        self._sent: deque[tuple[bytes, int]] = deque()  # not wholly answered: commands and their number
        self._sent_bytes = 0
        self._failures = 0

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._settle(0)
        finally:
            if self._connection is not None:
                if kind is None:
                    _keep(self._connection, self._access)
                else:
                    self._connection.close()
                self._connection = None

    def publish(self, commands: bytes, number: int) -> None:
        """Send commands that are answered `number` times. Raises PublishRefused or Unreachable."""
        self._sent.append((commands, number))
        self._sent_bytes += len(commands)
        if self._connection is None:
            self._connect_and_send_again()
        else:
            try:
                self._connection.send(commands)
            except _Lost as lost:
                self._failed(lost)
        self._settle(self._window)

    def _settle(self, at_most: int) -> None:
        """Read answers until no more bytes than this are without one."""
        while self._sent_bytes > at_most:
            connection = self._connection
            assert connection is not None
            commands, number = self._sent[0]
            try:
                for _ in range(number):
                    connection.wait_for_ok()
            except _Lost as lost:
                self._failed(lost)
                continue
            self._failures = 0
            self._sent.popleft()
            self._sent_bytes -= len(commands)

    def _failed(self, lost: _Lost) -> None:
        """Try all nsqds in turn, with pauses between the rounds."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._failures += 1
        if self._failures > self._retries * len(self._addresses):
            raise Unreachable(str(lost)) from None
        if self._failures % len(self._addresses) == 0:
            time.sleep(self._interval)
        self._connect_and_send_again()

    def _connect_and_send_again(self) -> None:
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        try:
            self._connection = _kept(address, self._access) or Connection(address, self._access)
            for commands, _ in self._sent:
                self._connection.send(commands)
        except _Lost as lost:
            self._failed(lost)


# ---- idle connections of this process, which serves one task after the other

_idle: dict[tuple[str, Access], Connection] = {}
_owner = os.getpid()


def _kept(address: str, access: Access) -> Connection | None:
    global _owner
    if _owner != os.getpid():  # a fork: those are our parent's
        _idle.clear()
        _owner = os.getpid()
    return _idle.pop((address, access), None)


def _keep(connection: Connection, access: Access) -> None:
    if _owner == os.getpid():
        old, _idle[connection.address, access] = _idle.get((connection.address, access)), connection
        if old is not None:
            old.close()
    else:
        connection.close()
