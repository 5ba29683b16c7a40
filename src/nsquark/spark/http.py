"""Blocking HTTP for Spark's Python workers, over connections that are kept.

A worker process serves one task after another. The module therefore keeps idle connections beyond the life of
any reader. A connection is kept only after a response was read to its end; otherwise it is closed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from nsquark.net.congestion import do_not_pace

from .errors import BadResponse, RequestRefused, Unreachable

ACCEPT = "application/vnd.nsq; version=1.0"
_MAX_IDLE = 4  # connections to one daemon, per process


@dataclass(frozen=True)
class Access:
    """How to talk to a daemon: timeout, TLS files and secret. Can be pickled for other processes."""

    timeout: float = 10.0
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    secret: str = ""

    def __repr__(self) -> str:
        return f"Access(timeout={self.timeout})"  # without the secret: this text may end up in a log

    @property
    def asks_for_tls(self) -> bool:
        """Whether any `tls.` option is given."""
        return bool(self.ca_file or self.cert_file or not self.verify)

    def ssl_context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) when a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


class Request(NamedTuple):
    path: str
    query: Mapping[str, object] | None = None
    method: str = "GET"
    body: bytes = b""
    hold: float = 0.0  # seconds that the daemon may hold the response back on purpose

    @property
    def target(self) -> str:
        return self.path + ("?" + urlencode(self.query) if self.query else "")


class _IdleConnections:
    """The idle connections of this process, by daemon and access."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, Access], list[http.client.HTTPConnection]] = {}
        self._pid = os.getpid()

    def take(self, base: str, access: Access) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._pid != os.getpid():  # after a fork the connections belong to the parent
                self._idle.clear()
                self._pid = os.getpid()
            idle = self._idle.get((base, access))
            return idle.pop() if idle else None

    def put(self, base: str, access: Access, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault((base, access), [])
            if len(idle) < _MAX_IDLE and self._pid == os.getpid():
                idle.append(connection)
                return
        connection.close()


_idle_connections = _IdleConnections()


def describe(error: Exception) -> str:
    """What went wrong on a connection, and the option to look at if a certificate is the reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see option 'tls.caFile')"
    reason = str(getattr(error, "reason", ""))
    # The daemon asks for a client certificate, or does not accept the one that was shown.
    if "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"{reason} (see options 'tls.certFile' and 'tls.keyFile')"
    return str(error) or type(error).__name__


def _new_connection(base: str, access: Access) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=access.timeout, context=access.ssl_context()
        )
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=access.timeout)


def _connect(connection: http.client.HTTPConnection) -> None:
    connection.connect()
    do_not_pace(connection.sock.fileno())


class Exchange:
    """Requests and responses on one connection to one daemon, strictly in turn.

    Use it as `with Exchange(...) as exchange`. At the end the connection is kept if its last response was
    read to the end, and closed otherwise.
    """

    def __init__(self, base: str, access: Access) -> None:
        self._base = base
        self._access = access
        self._connection = _idle_connections.take(base, access)
        self._fresh = self._connection is None  # nothing was answered on this connection yet
        self._request: Request | None = None
        self._incomplete = False  # a response is outstanding, or not read to its end
        self._aborted = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is None:
            return
        if self._incomplete:
            self._connection.close()
        else:
            _idle_connections.put(self._base, self._access, self._connection)

    def abort(self) -> None:
        """Make the request that another thread has under way fail, and every later one."""
        self._aborted = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def send(self, request: Request) -> None:
        """Raises Unreachable."""
        self._request = request
        self._incomplete = True
        if self._connection is None:
            self._fresh = True
            try:
                self._connection = _new_connection(self._base, self._access)
            except OSError as error:
                raise self._unreachable(error) from None
        try:
            self._send(self._connection, request)
        except (OSError, http.client.HTTPException) as error:
            self._send_again(error)

    def _send(self, connection: http.client.HTTPConnection, request: Request) -> None:
        headers = {"Accept": ACCEPT}
        if self._access.secret:
            headers["Authorization"] = f"Bearer {self._access.secret}"
        connection.timeout = self._access.timeout + request.hold
        if connection.sock is None:
            _connect(connection)
        else:
            connection.sock.settimeout(connection.timeout)
        connection.request(request.method, request.target, request.body or None, headers)

    def _send_again(self, error: Exception) -> None:
        """Send the request once more if it failed on a kept connection. Raises Unreachable.

        The daemon may have closed a kept connection in the meantime, which says nothing about the daemon. A
        failure of a fresh connection does.
        """
        connection = self._connection
        assert connection is not None
        assert self._request is not None
        connection.close()
        if self._fresh or self._aborted or isinstance(error, TimeoutError):
            raise self._unreachable(error) from None
        self._fresh = True
        try:
            self._send(connection, self._request)
        except (OSError, http.client.HTTPException) as another:
            connection.close()
            raise self._unreachable(another) from None

    def response(self) -> http.client.HTTPResponse:
        """The response to the request that was sent, with its body not yet read. Raises Unreachable."""
        connection = self._connection
        assert connection is not None
        try:
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._send_again(error)
            try:
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as another:
                connection.close()
                raise self._unreachable(another) from None
        self._fresh = False
        return response

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """The rest of the body. Raises Unreachable."""
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._broke_off(error) from None
        self._incomplete = False
        return body

    def read_into(self, response: http.client.HTTPResponse, buffer: memoryview) -> None:
        """Fill the whole buffer from the body. Raises Unreachable."""
        while len(buffer):
            try:
                count = response.readinto(buffer)
            except (OSError, http.client.HTTPException) as error:
                raise self._broke_off(error) from None
            if not count:
                raise self._broke_off()
            buffer = buffer[count:]
        self._incomplete = not response.isclosed()

    def fetch_json(self, request: Request) -> Any:
        """Send a request; the JSON of its response, or None for an empty response.

        Raises Unreachable, RequestRefused, or BadResponse.
        """
        self.send(request)
        response = self.response()
        if response.status != 200:
            raise self.refusal(request, response)
        body = self.read(response)
        if not body:
            return None
        try:
            return json.loads(body)
        except ValueError:
            raise BadResponse(f"{self._base}{request.path}: the answer is no JSON") from None

    def refusal(self, request: Request, response: http.client.HTTPResponse) -> RequestRefused:
        """The error that a response other than 200 stands for."""
        body = self.read(response)
        try:
            details = json.loads(body)
            message = str(details["message"])
        except (ValueError, KeyError, TypeError):
            details, message = {}, body[:200].decode("utf-8", "replace").strip()
        return RequestRefused(self._base + request.path, response.status, message, details)

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self._base} cannot be reached: {describe(error)}")

    def _broke_off(self, error: Exception | None = None) -> Unreachable:
        reason = "" if error is None else f": {describe(error)}"
        return Unreachable(f"{self._base}: the answer broke off{reason}")


def fetch_json(
    base: str,
    access: Access,
    path: str,
    query: Mapping[str, object] | None = None,
    method: str = "GET",
    body: bytes = b"",
    hold: float = 0.0,
) -> Any:
    """Like `Exchange.fetch_json`, on a connection taken for this one request."""
    with Exchange(base, access) as exchange:
        return exchange.fetch_json(Request(path, query, method, body, hold))
