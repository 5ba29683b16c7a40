"""HTTP as Spark's workers speak it: the blocking client, with the errors that a query is told."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlencode

from nsquark.errors import ConnectionLost
from nsquark.http.blocking_client import Access, BlockingExchange, reason
from nsquark.http.client_protocol import NotJson, parse_json

from .errors import BadAnswer, Refused, Unreachable

__all__ = ["Access", "Exchange", "fetch", "why"]


def why(error: Exception) -> str:
    """What went wrong on a connection, and which option has to do with it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see option 'tls.caFile')"
    alert = str(getattr(error, "reason", ""))
    if "CERTIFICATE" in alert or "HANDSHAKE_FAILURE" in alert:  # the daemon wants a certificate, or another
        return f"{alert} (see options 'tls.certFile' and 'tls.keyFile')"
    return reason(error)


@contextmanager
def _as_unreachable() -> Iterator[None]:
    try:
        yield
    except ConnectionLost as error:
        raise Unreachable(str(error)) from None


class Exchange:
    """Requests on one connection, each answered before the next is sent.

    Leaving `with Exchange(...)` keeps the connection for the next task if its last answer was read to the
    end, and closes it otherwise.
    """

    def __init__(self, base: str, access: Access) -> None:
        self._exchange = BlockingExchange(base, access, why)

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange.close()

    def abort(self) -> None:
        """Make the request that another thread has under way fail, and all later ones."""
        self._exchange.abort()

    def ask(self, method: str, target: str, patience: float | None = None, body: bytes = b"") -> None:
        """Send a request; `patience` is how long its answer may take on purpose. Raises Unreachable."""
        with _as_unreachable():
            self._exchange.send(method, target, patience, body)

    def answer(self) -> HTTPResponse:
        """The head of the answer to what was asked; its body is still to be read. Raises Unreachable."""
        with _as_unreachable():
            return self._exchange.response()

    def read(self, response: HTTPResponse) -> bytes:
        """The rest of the body. Raises Unreachable."""
        with _as_unreachable():
            return self._exchange.read(response)

    def read_into(self, response: HTTPResponse, buffer: memoryview) -> None:
        """As much of the body as fills the buffer. Raises Unreachable."""
        with _as_unreachable():
            self._exchange.read_into(response, buffer)

    def refusal(self, target: str, response: HTTPResponse) -> Refused:
        """The error for an answer other than 200."""
        with _as_unreachable():
            error = self._exchange.bad_status(target, response)
        return Refused(error.url, error.status, error.message, error.details)

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
        try:
            return parse_json(self._exchange.base + path, answer) if answer else None
        except NotJson as error:
            raise BadAnswer(str(error)) from None


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
