"""The arguments and results of a handler: the request, the response, and the response that comes later.

A `Response` is laid out when it is made, so that one made once can be sent for ever. The `v1_…` functions
make what NSQ calls version 1 answers: its header, its JSON, its errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from nsquark.errors import ConnectionLost, NsquarkError, UsageError

if TYPE_CHECKING:
    import asyncio

    from .body import BodyWriter
    from .connection import HttpConnection
    from .router import Target

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"
CLOSE = b"Connection: close\r\n"
KEEP_ALIVE = b"Connection: keep-alive\r\n"
# Go writes header names in its canonical form, whatever the source says, so this is NSQ's on the wire.
V1_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")


class Response:
    """A status, a body and the head that goes before them, up to the headers each connection adds."""

    __slots__ = ("_packed", "_packed_with", "body", "head", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        length: int | None = None,
    ) -> None:
        """`length` is said instead of the body's, where that comes later."""
        lines = [f"HTTP/1.1 {status} {_reason(status)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines.append(f"Content-Length: {len(body) if length is None else length}\r\n")
        self.status = status
        self.head = "\r\n".join(lines).encode("latin-1")
        self.body = body
        self._packed = self._packed_with = b""

    def pack(self, end_of_head: bytes) -> bytes:
        """Head and body in one piece. Remembered while the end is the same object, which is for a second."""
        if self._packed_with is not end_of_head:
            self._packed_with = end_of_head
            self._packed = self.head + end_of_head + self.body
        return self._packed


class Sent(Response):
    """The response of a handler that has sent it itself, by `Request.open_body`."""

    __slots__ = ()


class HttpError(NsquarkError):
    """Raised by a handler to answer with NSQ's error JSON, and further fields if there is more to say."""

    def __init__(
        self,
        status: int,
        message: str,
        details: Mapping[str, object] | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(f"{status} {message}")
        self.response = v1_json({"message": message, **(details or {})}, status, headers)


class Receiver(Protocol):
    """A connection, as a pending response sees it: it is told when the response is there."""

    def answer(self, request: Request, response: Response) -> None: ...


class PendingResponse:
    """A response that a handler promises now and resolves later, without a task or a future.

    The handler has done its work when it returns one; requests behind it on the same connection are handled
    meanwhile, and answered after it.
    """

    __slots__ = ("_connection", "_request", "_response")

    def __init__(self) -> None:
        self._response: Response | None = None
        self._connection: Receiver | None = None
        self._request: Request | None = None

    def resolve(self, response: Response) -> None:
        """Send the response as soon as it is its turn. Raises UsageError the second time."""
        if self._response is not None:
            raise UsageError(f"a response resolved twice: {self._response.status}, now {response.status}")
        self._response = response
        if self._connection is not None and self._request is not None:
            self._connection.answer(self._request, response)

    def attach(self, connection: Receiver, request: Request) -> Response | None:
        """Called by the connection: the response if it is there already, else it will be told."""
        if self._response is None:
            self._connection, self._request = connection, request
        return self._response


class Request:
    """One request as its handler sees it. The body is whole, and empty unless the route takes one."""

    __slots__ = (
        "body", "body_begun", "connection_header", "grants", "headers", "http_connection", "response",
        "started", "target",
    )  # fmt: skip

    def __init__(
        self,
        http_connection: HttpConnection | None,
        target: Target,
        headers: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> None:
        self.http_connection = http_connection
        self.target = target
        self.headers = headers  # as they came: see `header`
        self.body = b""
        self.body_begun = False  # of the response: it cannot become another one any more
        self.connection_header = b""  # of the answer, as a line, where not the version's default is meant
        self.grants: object = None  # what the router's guard knows about the client, for the handler
        self.response: Response | None = None
        self.started = 0.0  # of the clock of the access log; 0 when it is not to be logged

    @property
    def method(self) -> str:
        return self.target.method.decode("ascii")

    @property
    def uri(self) -> bytes:
        """As the client sent it."""
        return self.target.uri

    @property
    def keep_alive(self) -> bool:
        return self.connection_header != CLOSE

    @property
    def path(self) -> str:
        """The path with its escapes resolved."""
        return self.target.path

    @property
    def argument(self) -> str:
        """The text in place of `<name>` in the route's path; empty if the route has none."""
        return self.target.argument

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter. Raises HttpError (400) where Go would not parse it."""
        query = self.target.query
        if query is None:
            raise HttpError(400, "INVALID_REQUEST")
        return query

    def parameter(self, name: str) -> str:
        """A parameter of the query that must be given, though it may be empty. Raises HttpError (400)."""
        value = self.query.get(name)
        if value is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name, or None. The last one, if it is repeated."""
        wanted = name.lower().encode("latin-1")
        value = None
        for key, given in self.headers.items():
            if key.lower() == wanted:
                value = given.decode("latin-1").strip()
        return value

    async def open_body(self, response: Response, start: bytes = b"") -> BodyWriter:
        """Send the head of a response whose body the handler, a coroutine, writes piece by piece: all but its
        `start`, which goes with the head.

        Waits until it is this request's turn. The handler returns the response when the body is complete.
        Raises ConnectionLost when the client has gone.
        """
        if self.http_connection is None:
            raise ConnectionLost("there is no connection")
        return await self.http_connection.open_body(self, response, start)

    async def wait_until_gone(self, seconds: float, news: asyncio.Future[None] | None = None) -> bool:
        """Wait, at most so long, for the client to close its side, or for `news`; whether the client did."""
        return self.http_connection is None or await self.http_connection.departure.wait(seconds, news)

    @property
    def peer(self) -> str:
        """`ip:port` of the client, or `@` on a unix socket."""
        return self.http_connection.peer if self.http_connection is not None else "@"


def pack_json(value: object) -> str:
    """Compact JSON with `<`, `>` and `&` escaped, as Go writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def v1_json(value: object, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Response:
    # A lone surrogate cannot be UTF-8; written as the escape \udxxx it is still JSON.
    return v1_body(pack_json(value).encode("utf-8", "backslashreplace"), JSON_TYPE, status, headers)


def v1_error(status: int, message: str, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return v1_json({"message": message}, status, headers)


def v1_text(text: str, status: int = 200) -> Response:
    return v1_body(text.encode("utf-8", "backslashreplace"), TEXT_TYPE, status)


def v1_body(
    body: bytes, content_type: str, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> Response:
    return Response(status, body, (*headers, ("Content-Type", content_type), V1_HEADER))


def v1_stream(length: int, content_type: str) -> Sent:
    """The head of a body of so many bytes that the handler sends by `Request.open_body`."""
    return Sent(200, headers=(("Content-Type", content_type), V1_HEADER), length=length)


def v1_empty() -> Response:
    return Response(200, b"", (V1_HEADER,))


def plain_text(status: int, text: str) -> Response:
    """Text without NSQ's header: /ping, and whatever goes wrong before NSQ is asked."""
    return Response(status, text.encode("utf-8", "backslashreplace"), (("Content-Type", TEXT_TYPE),))


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "status"
