"""Publishing from an executor: blocking sockets, several commands under way, another nsqd when one fails.

What has been sent and not answered is kept, and sent again to the next nsqd when the connection is lost: at
least once. Memory is bounded by the window.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence

from nsquark.client.connection.blocking_connection import AuthSecretMissing, BlockingConnection, TlsNotOffered
from nsquark.errors import DpubFailed, MpubFailed, NsquarkError, ProtocolError, PubFailed
from nsquark.version import VERSION

from .errors import Unreachable
from .http import Access, why
from .sink_options import SinkOptions

# What another nsqd, or this one later, may well take.
_PASSING = (PubFailed, MpubFailed, DpubFailed)


class PublishRefused(NsquarkError):
    """An nsqd does not take what it is sent, nor would another."""


class _Lost(Exception):
    """The connection is of no more use."""


class Connection:
    """A V2 connection that only publishes. Raises _Lost and PublishRefused."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        try:
            self._connection = BlockingConnection(address, access.timeout)
        except OSError as error:
            raise _Lost(f"nsqd {address} cannot be reached: {error}") from None
        try:
            self._shake_hands(access)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, access: Access) -> None:
        tls = bool(access.ca_file or access.cert_file or not access.verify)
        document = {
            "client_id": f"spark-{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"nsquark-spark/{VERSION}",
            "feature_negotiation": True,
            "heartbeat_interval": -1,  # the task reads none while Spark makes the next rows
            "tls_v1": tls,
        }
        try:
            context = access.ssl_context() if tls else None
            self._connection.shake_hands(document, context, access.secret or None)
        except ssl.SSLCertVerificationError as error:
            raise PublishRefused(
                f"option 'tls.caFile': nsqd {self.address}: {error.verify_message}"
            ) from None
        except TlsNotOffered:
            raise PublishRefused(f"option 'tls.caFile': nsqd {self.address} has no TLS") from None
        except AuthSecretMissing:
            raise PublishRefused(f"option 'auth.secret': missing, and nsqd {self.address} wants it") from None
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from None

    def close(self) -> None:
        self._connection.close()

    def send(self, data: bytes) -> None:
        try:
            self._connection.send(data)
        except OSError as error:
            raise self._failure(error) from None

    def wait_for_ok(self) -> None:
        try:
            answer = self._connection.read_response()
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from None
        if answer != b"OK":
            raise _Lost(f"nsqd {self.address}: {answer[:60]!r} in place of OK")

    def _failure(self, error: OSError | ProtocolError) -> _Lost | PublishRefused:
        if not isinstance(error, ProtocolError):
            return _Lost(f"nsqd {self.address}: {why(error)}")
        text = f"nsqd {self.address}: {error}"
        return _Lost(text) if isinstance(error, _PASSING) else PublishRefused(_hint(error.pack()) + text)


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
