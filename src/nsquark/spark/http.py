"""HTTP as Spark's workers speak it: synchronous, over connections that are kept.

A worker process serves one task after the other, so its idle connections are kept by the module and outlive
any reader. A connection goes back only after a whole answer: one that still has bytes to come is closed.
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
from typing import Any
from urllib.parse import urlencode, urlsplit

from nsquark.loopback import do_not_pace

from .errors import BadAnswer, Refused, Unreachable

ACCEPT = "application/vnd.nsq; version=1.0"
_IDLE = 4  # connections to one daemon, per process


@dataclass(frozen=True)
class Access:
    """How a daemon is spoken to; can be shipped to other processes."""

    timeout: float = 10.0
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True
    secret: str = ""

    def __repr__(self) -> str:
        return f"Access(timeout={self.timeout})"  # the secret is nobody's business

    def ssl_context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError among them) when a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file or None)
        return context


Connection = http.client.HTTPConnection


class _Pool:
    """Idle connections of this process, by daemon and access."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, Access], list[Connection]] = {}
        self._pid = os.getpid()

    def take(self, base: str, access: Access) -> Connection | None:
        with self._lock:
            if self._pid != os.getpid():  # a fork: those are our parent's
                self._idle.clear()
                self._pid = os.getpid()
            idle = self._idle.get((base, access))
            return idle.pop() if idle else None

    def put(self, base: str, access: Access, connection: Connection) -> None:
        with self._lock:
            idle = self._idle.setdefault((base, access), [])
            if len(idle) < _IDLE and self._pid == os.getpid():
                idle.append(connection)
                return
        connection.close()


_pool = _Pool()


def why(error: Exception) -> str:
    """What went wrong on a connection, and which option has to do with it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see option 'tls.caFile')"
    reason = str(getattr(error, "reason", ""))
    if "CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason:  # it wants to see one, or another
        return f"{reason} (see options 'tls.certFile' and 'tls.keyFile')"
    return str(error) or type(error).__name__


def _connect(base: str, access: Access) -> Connection:
    parts = urlsplit(base)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=access.timeout, context=access.ssl_context()
        )
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=access.timeout)


def _open(connection: Connection) -> None:
    connection.connect()
    do_not_pace(connection.sock.fileno())


class Exchange:
    """Requests on one connection, each answered before the next is sent.

    `with Exchange(...) as exchange`: leaving it gives the connection back if its last answer was read to the
    end, and closes it otherwise.
    """

    def __init__(self, base: str, access: Access) -> None:
        self._base = base
        self._access = access
        self._connection = _pool.take(base, access)
        self._fresh = self._connection is None
        self._asked: tuple[str, str, float | None, bytes] | None = None
        self._open = False  # an answer is due, or not read to its end
        self._aborted = False

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is None:
            return
        if self._open:
            self._connection.close()
        else:
            _pool.put(self._base, self._access, self._connection)

    def abort(self) -> None:
        """Whatever is under way in another thread fails, and so does what comes after."""
        self._aborted = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def ask(self, method: str, target: str, patience: float | None = None, body: bytes = b"") -> None:
        """Send a request; `patience` is how long its answer may take on purpose. Raises Unreachable."""
        self._asked = (method, target, patience, body)
        self._open = True
        if self._connection is None:
            self._fresh = True
            try:
                self._connection = _connect(self._base, self._access)
            except OSError as error:
                raise Unreachable(f"{self._base} cannot be reached: {why(error)}") from None
        try:
            self._send(self._connection, *self._asked)
        except (OSError, http.client.HTTPException) as error:
            self._again(error)

    def _send(
        self, connection: Connection, method: str, target: str, patience: float | None, body: bytes
    ) -> None:
        headers = {"Accept": ACCEPT}
        if self._access.secret:
            headers["Authorization"] = f"Bearer {self._access.secret}"
        wait = self._access.timeout + (patience or 0.0)
        connection.timeout = wait
        if connection.sock is None:
            _open(connection)
        else:
            connection.sock.settimeout(wait)
        connection.request(method, target, body or None, headers)

    def _again(self, error: Exception) -> None:
        """A kept connection may have been closed by the daemon meanwhile: that is no news, a new one is."""
        connection = self._connection
        assert connection is not None
        assert self._asked is not None
        connection.close()
        if self._fresh or self._aborted or isinstance(error, TimeoutError):
            raise Unreachable(f"{self._base} cannot be reached: {why(error)}") from None
        self._fresh = True
        try:
            self._send(connection, *self._asked)
        except (OSError, http.client.HTTPException) as another:
            connection.close()
            raise Unreachable(f"{self._base} cannot be reached: {why(another)}") from None

    def answer(self) -> http.client.HTTPResponse:
        """The head of the answer to what was asked; its body is to be read. Raises Unreachable."""
        connection = self._connection
        assert connection is not None
        try:
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._again(error)
            try:
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as another:
                connection.close()
                raise Unreachable(f"{self._base} cannot be reached: {why(another)}") from None
        self._fresh = False
        return response

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """The rest of the body. Raises Unreachable."""
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._base}: the answer broke off: {why(error)}") from None
        self._open = False
        return body

    def read_into(self, response: http.client.HTTPResponse, buffer: memoryview) -> None:
        """As much of the body as fills the buffer. Raises Unreachable."""
        while len(buffer):
            try:
                count = response.readinto(buffer)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"{self._base}: the answer broke off: {why(error)}") from None
            if not count:
                raise Unreachable(f"{self._base}: the answer broke off")
            buffer = buffer[count:]
        self._open = not response.isclosed()

    def fetch(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        method: str = "GET",
        patience: float | None = None,
        body: bytes = b"",
    ) -> Any:
        """The JSON that a request is answered with; None for nothing.

        Raises Unreachable, Refused, or BadAnswer.
        """
        target = path + ("?" + urlencode(query) if query else "")
        self.ask(method, target, patience, body)
        response = self.answer()
        if response.status != 200:
            raise self.refusal(target, response)
        answer = self.read(response)
        if not answer:
            return None
        try:
            return json.loads(answer)
        except ValueError:
            raise BadAnswer(f"{self._base}{path}: the answer is no JSON") from None

    def refusal(self, target: str, response: http.client.HTTPResponse) -> Refused:
        """What an answer other than 200 says."""
        body = self.read(response)
        try:
            details = json.loads(body)
            message = str(details["message"])
        except (ValueError, KeyError, TypeError):
            details, message = {}, body[:200].decode("utf-8", "replace").strip()
        path = target.partition("?")[0]
        return Refused(self._base + path, response.status, message, details)


def fetch(
    base: str,
    access: Access,
    path: str,
    query: Mapping[str, object] | None = None,
    method: str = "GET",
    patience: float | None = None,
    body: bytes = b"",
) -> Any:
    """The JSON that a request is answered with; None for nothing. Raises Unreachable, Refused, BadAnswer."""
    with Exchange(base, access) as exchange:
        return exchange.fetch(path, query, method, patience, body)
