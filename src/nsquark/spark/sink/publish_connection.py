"""A V2 connection to an nsqd that only publishes, and the idle connections that a process keeps."""

from __future__ import annotations

import os
import socket
import ssl

from nsquark.client.connection.blocking_connection import (
    AuthSecretMissing,
    BlockingConnection,
    ConnectionClosed,
    TlsNotOffered,
)
from nsquark.errors import (
    ConnectFailed,
    DpubFailed,
    MpubFailed,
    NsquarkError,
    ProtocolError,
    PubFailed,
    Unauthorized,
    UsageError,
)
from nsquark.version import VERSION
from nsquark.wire.frames import OK_DATA

from ..http import Access, describe

# Another nsqd, or the same nsqd later, may well accept what was refused with one of these errors.
_TEMPORARY = (PubFailed, MpubFailed, DpubFailed)


class PublishRefused(NsquarkError):
    """An nsqd refuses a command for good. Any other nsqd would refuse it too."""


class ConnectionFailed(Exception):
    """The connection can no longer be used. Another one may succeed."""


class PublishConnection:
    """Every method raises ConnectionFailed or PublishRefused."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        try:
            self._connection = BlockingConnection(address, access.timeout)
        except (OSError, UsageError) as error:  # a UsageError: an nsqlookupd has told no host or no port
            raise ConnectionFailed(f"nsqd {address} cannot be reached: {error}") from None
        try:
            self._shake_hands(access)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def _shake_hands(self, access: Access) -> None:
        document: dict[str, object] = {
            "client_id": f"spark-{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"nsquark-spark/{VERSION}",
            "feature_negotiation": True,
            "heartbeat_interval": -1,  # the task does not read while Spark makes the next rows
            "tls_v1": access.asks_for_tls,
        }
        try:
            context = access.ssl_context() if access.asks_for_tls else None
            self._connection.shake_hands(document, context, access.secret or None)
        except TlsNotOffered:
            raise PublishRefused(f"option 'tls.caFile': nsqd {self.address} has no TLS") from None
        except AuthSecretMissing:
            raise PublishRefused(f"option 'auth.secret': missing, and nsqd {self.address} wants it") from None
        except ssl.SSLCertVerificationError as error:
            raise PublishRefused(
                f"option 'tls.caFile': nsqd {self.address}: {error.verify_message}"
            ) from None
        except ssl.SSLError as error:
            raise ConnectionFailed(f"nsqd {self.address}: no TLS: {describe(error)}") from None
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from None

    def send(self, commands: bytes) -> None:
        try:
            self._connection.send(commands)
        except OSError as error:
            raise self._failure(error) from None

    def wait_for_ok(self) -> None:
        try:
            response = self._connection.read_response()
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from None
        if response != OK_DATA:
            raise ConnectionFailed(f"nsqd {self.address}: {response[:60]!r} in place of OK")

    def _failure(self, error: OSError | ProtocolError) -> ConnectionFailed | PublishRefused:
        if isinstance(error, (ConnectFailed, ConnectionClosed)):  # their texts begin with the address
            return ConnectionFailed(f"nsqd {error}")
        if isinstance(error, OSError):
            return ConnectionFailed(f"nsqd {self.address}: {describe(error)}")
        text = f"nsqd {self.address}: {error}"
        if isinstance(error, _TEMPORARY):
            return ConnectionFailed(text)
        return PublishRefused(_option_hint(error) + text)


def _option_hint(error: ProtocolError) -> str:
    """The option to look at, for the beginning of an error's text."""
    if b"TLS required" in error.description:
        return "option 'tls.caFile': missing: "
    if isinstance(error, Unauthorized) or error.code.startswith("E_AUTH"):
        return "option 'auth.secret': "
    return ""


class _IdleConnections:
    """At most one idle connection per nsqd, kept from one task of a worker process to the next."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, Access], PublishConnection] = {}
        self._pid = os.getpid()

    def take(self, address: str, access: Access) -> PublishConnection | None:
        if self._pid != os.getpid():  # after a fork the connections belong to the parent
            self._idle.clear()
            self._pid = os.getpid()
        return self._idle.pop((address, access), None)

    def put(self, connection: PublishConnection, access: Access) -> None:
        if self._pid != os.getpid():
            connection.close()
            return
        key = (connection.address, access)
        old = self._idle.get(key)
        self._idle[key] = connection
        if old is not None:
            old.close()


idle_connections = _IdleConnections()
