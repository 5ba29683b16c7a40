"""The blocking transport of the HTTP client, over connections that are kept.

A process that serves one task after the other keeps its idle connections in this module, so that they outlive
any reader. A connection is kept only after a whole answer: one that still has bytes to come is closed. The
bytes of an answer are parsed by `http.client`; all other rules are in `protocol.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

from nsquark.errors import ConnectFailed, ConnectionLost
from nsquark.net.congestion import do_not_pace

from .protocol import (
    MAX_BODY,
    BadStatus,
    nsq_headers,
    pack_head,
    pack_request,
    parse_url,
    port_of,
    without_query,
)

_IDLE = 4  # connections to one daemon, per process
_CONNECT = 4.0  # seconds that a host has to accept a connection: its kernel does, however busy the daemon is


@dataclass(frozen=True)
class Access:
    """How to connect to a daemon: timeout, TLS files and secret. It can be pickled."""

    timeout: float = 10.0
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    secret: str = ""

    def __repr__(self) -> str:
        return f"Access(timeout={self.timeout})"  # without the secret

    @property
    def asks_for_tls(self) -> bool:
        """Whether anything about TLS is given. A V2 connection then asks nsqd for TLS."""
        return bool(self.ca_file or self.cert_file or not self.verify)

    def ssl_context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError among them) when a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


class _IdleConnections:
    """The idle connections of this process, by daemon and access."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, Access], list[socket.socket]] = {}
        self._pid = os.getpid()

    def take(self, base: str, access: Access) -> socket.socket | None:
        with self._lock:
            if self._pid != os.getpid():  # after a fork they belong to the parent
                self._idle.clear()
                self._pid = os.getpid()
            idle = self._idle.get((base, access))
            return idle.pop() if idle else None

    def put(self, base: str, access: Access, connection: socket.socket) -> None:
        with self._lock:
            idle = self._idle.setdefault((base, access), [])
            if len(idle) < _IDLE and self._pid == os.getpid():
                idle.append(connection)
                return
        connection.close()


_idle_connections = _IdleConnections()


def _connect(base: str, access: Access) -> socket.socket:
    parts = parse_url(base)
    context = access.ssl_context() if parts.scheme == "https" else None
    address = (parts.hostname or "", port_of(parts))
    connection = socket.create_connection(address, min(access.timeout, _CONNECT))
    connection.settimeout(access.timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=parts.hostname)
        do_not_pace(connection.fileno())
    except BaseException:
        connection.close()
        raise
    return connection


def reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class BlockingExchange:
    """Requests on one connection, each answered before the next is sent.

    Leaving `with BlockingExchange(...)` keeps the connection if its last answer was read to the end, and
    closes it otherwise. `explain` puts an error of the connection into words.
    """

    def __init__(self, base: str, access: Access, explain: Callable[[Exception], str] = reason) -> None:
        self.base = base
        self._access = access
        self._explain = explain
        self._connection = _idle_connections.take(base, access)
        self._fresh = self._connection is None  # no answer has come over this connection yet
        self._request = b""
        self._timeout = access.timeout
        self._unread = False  # an answer is due, or not read to its end
        self._last = False  # the daemon closes the connection after this answer
        self._aborted = False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._unread or self._last:
            connection.close()
        else:
            _idle_connections.put(self.base, self._access, connection)

    def abort(self) -> None:
        """Make the request that another thread has under way fail, and all later ones."""
        self._aborted = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def send(self, method: str, target: str, patience: float | None = None, body: bytes = b"") -> None:
        """Send a request. `patience` is how long the daemon may wait on purpose. Raises ConnectFailed."""
        path, _, query = target.partition("?")
        parts = parse_url(self.base)._replace(path=path, query=query)
        headers = nsq_headers(self._access.secret)
        self._request = pack_request(method, parts, body, headers, keep_alive=True)
        self._timeout = self._access.timeout + (patience or 0.0)
        if self._last or self._unread:  # the rest of an old answer must not be taken for the new one
            self._drop_connection()
        self._unread = True
        try:
            self._send()
        except OSError as error:
            self._send_again(error)

    def _send(self) -> None:
        if self._aborted:
            raise ConnectionError("the request was aborted")
        if self._connection is None:
            self._fresh = True
            self._connection = _connect(self.base, self._access)
        self._connection.settimeout(self._timeout)
        self._connection.sendall(self._request)

    def _send_again(self, error: Exception) -> None:
        """A daemon may have closed a kept connection meanwhile: try once more, over a new one."""
        self._drop_connection()
        if self._fresh or self._aborted or isinstance(error, TimeoutError):
            raise self._cannot_be_reached(error) from None
        try:
            self._send()
        except OSError as another:
            self._drop_connection()
            raise self._cannot_be_reached(another) from None

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        self._last = False
        if connection is not None:
            connection.close()

    def _cannot_be_reached(self, error: Exception) -> ConnectFailed:
        return ConnectFailed(f"{self.base} cannot be reached: {self._explain(error)}")

    def response(self) -> HTTPResponse:
        """The head of the answer to the request; its body is still to be read. Raises ConnectFailed."""
        try:
            response = self._head()
        except (OSError, HTTPException) as error:
            self._send_again(error)
            try:
                response = self._head()
            except (OSError, HTTPException) as another:
                self._drop_connection()
                raise self._cannot_be_reached(another) from None
        self._fresh = False
        self._last = response.will_close
        return response

    def _head(self) -> HTTPResponse:
        assert self._connection is not None
        response = HTTPResponse(self._connection)
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        return response

    def read(self, response: HTTPResponse, max_body: int = MAX_BODY) -> bytes:
        """The rest of the body. Raises ConnectionLost, also for more than `max_body` bytes."""
        length = response.length  # None if the head does not tell it
        if length is not None and length > max_body:
            raise ConnectionLost(f"{self.base}: an answer of more than {max_body} bytes")
        try:
            # Only `read()` without a size notices that a body of known length has broken off.
            body = response.read() if length is not None else response.read(max_body + 1)
        except (OSError, HTTPException) as error:
            raise ConnectionLost(f"{self.base}: the answer broke off: {self._explain(error)}") from None
        if len(body) > max_body:
            raise ConnectionLost(f"{self.base}: an answer of more than {max_body} bytes")
        self._unread = False
        return body

    def read_into(self, response: HTTPResponse, buffer: memoryview) -> None:
        """As much of the body as fills the buffer. Raises ConnectionLost."""
        while len(buffer):
            try:
                count = response.readinto(buffer)
            except (OSError, HTTPException) as error:
                raise ConnectionLost(f"{self.base}: the answer broke off: {self._explain(error)}") from None
            if not count:
                raise ConnectionLost(f"{self.base}: the answer broke off")
            buffer = buffer[count:]
        self._unread = not response.isclosed()

    def bad_status(self, target: str, response: HTTPResponse) -> BadStatus:
        """The error for an answer other than 200, whose body this reads."""
        return BadStatus(self.base + without_query(target), response.status, self.read(response))


class _Answers(io.BufferedReader):
    """The answers of a connection, one after the other. A response closes its file at its own end."""

    def makefile(self, mode: str) -> _Answers:
        """For HTTPResponse, which takes this for a socket."""
        return self

    def close(self) -> None:
        pass


class BlockingPipeline:
    """Requests on one connection that do not wait for the answers to the requests before them.

    The caller takes one answer for each request, in the order of the requests. After a ConnectionLost or
    BadStatus the caller cannot tell what became of the requests without an answer, and must close this.
    """

    def __init__(self, base: str, access: Access, explain: Callable[[Exception], str] = reason) -> None:
        """Raises ConnectFailed."""
        self.base = base
        self._access = access
        self._explain = explain
        self._headers = nsq_headers(access.secret)
        self._parts = parse_url(base)
        try:
            self._connection = _idle_connections.take(base, access) or _connect(base, access)
        except OSError as error:
            raise ConnectFailed(f"{base} cannot be reached: {explain(error)}") from None
        self._connection.settimeout(access.timeout)
        self._answers = _Answers(self._connection.makefile("rb", buffering=0))
        self._unanswered = 0
        self._last = False  # the daemon closes the connection after this answer
        # Of a TLS connection every piece is encrypted alone.
        self._more = 0 if isinstance(self._connection, ssl.SSLSocket) else getattr(socket, "MSG_MORE", 0)

    def send(self, method: str, target: str, body: bytes = b"") -> None:
        """Raises ConnectionLost."""
        path, _, query = target.partition("?")
        parts = self._parts._replace(path=path, query=query)
        head = pack_head(method, parts, len(body), self._headers, keep_alive=True)
        self._unanswered += 1
        try:
            self._connection.sendall(head, self._more if body else 0)
            self._connection.sendall(body)
        except OSError as error:
            raise ConnectionLost(f"{self.base}: {self._explain(error)}") from None

    def answer(self, target: str) -> bytes:
        """The body of the next answer, the one to `target`. Raises ConnectionLost, or BadStatus."""
        try:
            response = HTTPResponse(self._answers)  # type: ignore[arg-type]
            response.begin()
            if response.length is None or response.length > MAX_BODY:
                raise ConnectionLost(f"{self.base}: an answer of unknown length, or a very long one")
            body = response.read()
        except (OSError, HTTPException) as error:
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(f"{self.base}: {self._explain(error)}") from None
        self._unanswered -= 1
        self._last = response.will_close
        if response.status != 200:
            raise BadStatus(self.base + without_query(target), response.status, body)
        return body

    def close(self) -> None:
        """Keep the connection if all requests are answered, and close it otherwise."""
        self._answers.detach().close()
        if self._unanswered or self._last:
            self._connection.close()
        else:
            _idle_connections.put(self.base, self._access, self._connection)
