"""Blocking HTTP for Spark's Python workers: the shared blocking client, with the errors that end a query.

`nsquark.http.client.blocking` keeps the connections from one task of a worker process to the next.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPResponse
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import urlencode

from nsquark.errors import ConnectionLost
from nsquark.http.client.blocking import Access, BlockingExchange, BlockingPipeline, reason
from nsquark.http.client.protocol import BadStatus, NotJson, parse_json

from .errors import BadResponse, RequestRefused, Unreachable

__all__ = ["Access", "Exchange", "Pipeline", "Request", "describe", "fetch_json"]


class Request(NamedTuple):
    path: str
    query: Mapping[str, object] | None = None
    method: str = "GET"
    body: bytes = b""
    hold: float = 0.0  # seconds that the daemon may hold the response back on purpose

    @property
    def target(self) -> str:
        return self.path + ("?" + urlencode(self.query) if self.query else "")


def describe(error: Exception) -> str:
    """What went wrong on a connection, and the option to look at if a certificate is the reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see option 'tls.caFile')"
    alert = str(getattr(error, "reason", ""))
    # The daemon asks for a client certificate, or does not accept the one that was shown.
    if "CERTIFICATE" in alert or "HANDSHAKE_FAILURE" in alert:
        return f"{alert} (see options 'tls.certFile' and 'tls.keyFile')"
    if alert in _NOT_TLS:
        return "this port does not speak TLS: write http:// in place of https://"
    return reason(error)


# What OpenSSL says of bytes that are not TLS, in one version or the other.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _lost_is_unreachable(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise Unreachable for every ConnectionLost that `method` raises."""

    @functools.wraps(method)
    def wrapper(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*arguments, **named)
        except ConnectionLost as error:
            raise Unreachable(str(error)) from None

    return wrapper


class Exchange:
    """Requests and responses on one connection to one daemon, strictly in turn.

    Use it as `with Exchange(...) as exchange`. At the end the connection is kept if its last response was
    read to the end, and closed otherwise.
    """

    def __init__(self, base: str, access: Access) -> None:
        self._exchange = BlockingExchange(base, access, describe)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange.close()

    def abort(self) -> None:
        """Make the request that another thread has under way fail, and every later one."""
        self._exchange.abort()

    @_lost_is_unreachable
    def send(self, request: Request) -> None:
        """Raises Unreachable."""
        self._exchange.send(request.method, request.target, request.hold, request.body)

    @_lost_is_unreachable
    def response(self) -> HTTPResponse:
        """The response to the request that was sent, with its body not yet read. Raises Unreachable."""
        return self._exchange.response()

    @_lost_is_unreachable
    def read(self, response: HTTPResponse) -> bytes:
        """The rest of the body. Raises Unreachable."""
        return self._exchange.read(response)

    @_lost_is_unreachable
    def read_into(self, response: HTTPResponse, buffer: memoryview) -> None:
        """Fill the whole buffer from the body. Raises Unreachable."""
        self._exchange.read_into(response, buffer)

    def fetch_json(self, request: Request) -> Any:
        """Send a request; the JSON of its response, or None for an empty response.

        Raises Unreachable, RequestRefused, or BadResponse.
        """
        self.send(request)
        response = self.response()
        if response.status != 200:
            raise self.refusal(request, response)
        return _parse_body(self._exchange.base, request, self.read(response))

    @_lost_is_unreachable
    def refusal(self, request: Request, response: HTTPResponse) -> RequestRefused:
        """The error that a response other than 200 stands for. Raises Unreachable."""
        return _refused(self._exchange.bad_status(request.path, response))


class Pipeline:
    """Requests on one connection that do not wait for the answers to the requests before them.

    A caller that has got an error closes it.
    """

    @_lost_is_unreachable
    def __init__(self, base: str, access: Access) -> None:
        """Raises Unreachable."""
        self._pipeline = BlockingPipeline(base, access, describe)

    def close(self) -> None:
        self._pipeline.close()

    @_lost_is_unreachable
    def send(self, request: Request) -> None:
        """Raises Unreachable."""
        self._pipeline.send(request.method, request.target, request.body)

    @_lost_is_unreachable
    def take_json(self, request: Request) -> Any:
        """The JSON of the response to `request`, which is the oldest one without a response.

        Raises Unreachable, RequestRefused, or BadResponse.
        """
        try:
            body = self._pipeline.answer(request.path)
        except BadStatus as error:
            raise _refused(error) from None
        return _parse_body(self._pipeline.base, request, body)


def _parse_body(base: str, request: Request, body: bytes) -> Any:
    try:
        return parse_json(base + request.path, body) if body else None
    except NotJson as error:
        raise BadResponse(str(error)) from None


def _refused(error: BadStatus) -> RequestRefused:
    return RequestRefused(error.url, error.status, error.message, error.details)


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
