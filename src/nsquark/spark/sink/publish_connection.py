"""A V2 connection to an nsqd that only publishes, and the idle connections that a process keeps."""

from __future__ import annotations

import os
import socket
import ssl

from nsquark.errors import NsquarkError
from nsquark.version import VERSION

from ..http import Access, describe
from ..v2_socket import ConnectionClosed, ErrorFrame, V2Socket

# Another nsqd, or the same nsqd later, may well accept what was refused with one of these errors.
_TEMPORARY = (b"E_PUB_FAILED", b"E_MPUB_FAILED", b"E_DPUB_FAILED")


class PublishRefused(NsquarkError):
    """An nsqd refuses a command for good. Any other nsqd would refuse it too."""


class ConnectionFailed(Exception):
    """The connection can no longer be used. Another one may succeed."""


class PublishConnection:
    """Every method raises ConnectionFailed or PublishRefused."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        try:
            self._socket = V2Socket(address, access.timeout)
        except OSError as error:
            raise ConnectionFailed(f"nsqd {address} cannot be reached: {error}") from None
        try:
            self._negotiate(access)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def _negotiate(self, access: Access) -> None:
        document: dict[str, object] = {
            "client_id": f"spark-{os.getpid()}",
            "hostname": socket.gethostname(),
            "user_agent": f"nsquark-spark/{VERSION}",
            "feature_negotiation": True,
            "heartbeat_interval": -1,  # the task does not read while Spark makes the next rows
            "tls_v1": access.asks_for_tls,
        }
        try:
            granted = self._socket.identify(document)
            if granted.get("tls_v1"):
                self._start_tls(access)
                self._socket.read_response()
            elif access.asks_for_tls:
                raise PublishRefused(f"option 'tls.caFile': nsqd {self.address} has no TLS")
            if granted.get("auth_required"):
                if not access.secret:
                    raise PublishRefused(f"option 'auth.secret': missing, and nsqd {self.address} wants it")
                self._socket.authenticate(access.secret)
        except ErrorFrame as error:
            raise self._refusal(error) from None
        except OSError as error:
            raise self._failure(error) from None
        except ValueError as error:
            raise ConnectionFailed(f"nsqd {self.address}: no answer to IDENTIFY: {error}") from None

    def _start_tls(self, access: Access) -> None:
        try:
            self._socket.start_tls(access.ssl_context())
        except ssl.SSLCertVerificationError as error:
            raise PublishRefused(
                f"option 'tls.caFile': nsqd {self.address}: {error.verify_message}"
            ) from None
        except OSError as error:
            raise ConnectionFailed(f"nsqd {self.address}: no TLS: {describe(error)}") from None

    def send(self, commands: bytes) -> None:
        try:
            self._socket.send(commands)
        except OSError as error:
            raise self._failure(error) from None

    def wait_for_ok(self) -> None:
        try:
            response = self._socket.read_response()
        except ErrorFrame as error:
            raise self._refusal(error) from None
        except OSError as error:
            raise self._failure(error) from None
        if response != b"OK":
            raise ConnectionFailed(f"nsqd {self.address}: {response[:60]!r} in place of OK")

    def _failure(self, error: OSError) -> ConnectionFailed:
        if isinstance(error, ConnectionClosed):
            return ConnectionFailed(f"nsqd {self.address} has closed the connection")
        return ConnectionFailed(f"nsqd {self.address}: {describe(error)}")

    def _refusal(self, error: ErrorFrame) -> ConnectionFailed | PublishRefused:
        text = f"nsqd {self.address}: {error}"
        if error.data.startswith(_TEMPORARY):
            return ConnectionFailed(text)
        return PublishRefused(_option_hint(error.data) + text)


def _option_hint(error: bytes) -> str:
    """The option to look at, for the beginning of an error's text."""
    if b"TLS required" in error:
        return "option 'tls.caFile': missing: "
    if error.startswith((b"E_AUTH", b"E_UNAUTHORIZED")):
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
