"""The rules of an HTTP client of NSQ's daemons, without IO: requests, answers, limits, and the way to HTTPS.

`single_request.py` and `pool.py` are the asyncio transports, `blocking.py` is the one for threads. Errors
name a URL without its query, which may hold a secret.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from nsquark.errors import ConnectionLost, NsquarkError, UsageError
from nsquark.net.addresses import join_address

ACCEPT = "application/vnd.nsq; version=1.0"
MAX_HEAD = 65536
MAX_BODY = 256 << 20
_NSQ_FRAME = b"\0\0\0"  # the size before an answer of nsqd or nsqlookupd, which no HTTP answer begins with


@dataclass(slots=True)
class ClientResponse:
    """The answer to a request. Header names are in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class BadStatus(NsquarkError):
    """A daemon answered with another status than 200.

    `details` is the JSON object of the answer, empty without one. `message` is its text: the `message` of the
    details, or else the beginning of the body.
    """

    def __init__(self, url: str, status: int, body: bytes) -> None:
        self.url = url
        self.status = status
        self.body = body
        self.details: dict[str, Any] = {}
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(body)
            if isinstance(document, dict):
                self.details = document
        if "message" in self.details:
            self.message = str(self.details["message"])
        else:
            self.message = body[:200].decode("utf-8", "replace").strip()
        super().__init__(f"{url}: {status} {self.message}".rstrip())


class NotJson(ConnectionLost):
    """A daemon answered with a body that is no JSON."""


# ---- requests


def without_query(url: str) -> str:
    return url.partition("?")[0]


def parse_url(url: str) -> SplitResult:
    """The parts of a URL. Raises UsageError unless it is http or https and has a host."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{without_query(url)!r} is no http or https URL")
    return parts


def port_of(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def tls_context(parts: SplitResult, given: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """The context to connect with: the one given, or the system's roots; None for plain http."""
    if parts.scheme != "https":
        return None
    return given if given is not None else ssl.create_default_context()


def nsq_headers(secret: str | None = None) -> dict[str, str]:
    """The headers that every request to a daemon of NSQ has, with the secret as a bearer token."""
    headers = {"Accept": ACCEPT}
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    return headers


def pack_request(
    method: str, parts: SplitResult, body: bytes, headers: Mapping[str, str], *, keep_alive: bool = False
) -> bytes:
    """Raises UsageError for a line break that would begin another header."""
    return pack_head(method, parts, len(body), headers, keep_alive=keep_alive) + body


def pack_head(
    method: str, parts: SplitResult, length: int, headers: Mapping[str, str], *, keep_alive: bool = False
) -> bytes:
    """A request up to its body of `length` bytes. Raises UsageError like `pack_request`."""
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
    if not keep_alive:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if length or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {length}")
    for line in lines:
        if "\r" in line or "\n" in line:
            raise UsageError(f"a line break in {line!r}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8")


# ---- answers


class ResponseParser:
    """The bytes of one answer, turned into a `ClientResponse`. `url` names it in errors."""

    def __init__(self, url: str, max_body: int = MAX_BODY) -> None:
        self.complete = False
        self._url = url
        self._max_body = max_body
        self._response = ClientResponse()
        self._pieces: list[bytes] = []
        self._size = self._body_size = 0
        self._head_complete = False
        # Not at the top: Spark's executors need the rules in this module, and may not have httptools.
        import httptools

        self._parser = httptools.HttpResponseParser(self)
        self._parser_errors = httptools.HttpParserError, httptools.HttpParserUpgrade

    def feed(self, data: bytes) -> None:
        """Take bytes; no bytes are the end of the connection. Raises ConnectionLost."""
        if not self.complete:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        self._size += len(data)
        if not data:
            # Without a length, the body ends where the connection does.
            lengths = {"content-length", "transfer-encoding"} & self._response.headers.keys()
            if not self._head_complete or lengths:
                raise ConnectionLost(f"{self._url}: the connection ended before the answer did")
            self.complete = True
            return
        try:
            self._parser.feed_data(data)
        except self._parser_errors as error:
            if self.complete:
                return  # what follows the answer is of no interest
            reason = f"{self._url}: {error.__cause__ or error.__context__ or error}"
            if not isinstance(error, self._parser_errors[0]):
                reason = f"{self._url}: an upgrade that was not asked for"
            if self._size == len(data) and data.startswith(_NSQ_FRAME):
                reason = f"{self._url}: this is a TCP port of NSQ; the HTTP port is the one of --http-address"
            raise ConnectionLost(reason) from None
        if not self._head_complete and self._size > MAX_HEAD:
            raise ConnectionLost(f"{self._url}: a head of more than {MAX_HEAD} bytes")

    def response(self) -> ClientResponse:
        """The answer, once it is `complete`."""
        self._response.body = b"".join(self._pieces)
        return self._response

    # ---- the calls of httptools

    def on_message_begin(self) -> None:
        if self.complete:
            raise ConnectionLost("another answer follows the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._max_body:
            raise ConnectionLost(f"an answer of more than {self._max_body} bytes")
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if 100 <= self._response.status < 200:  # the answer is still to come
            self._head_complete = False
            self._response.headers.clear()
        else:
            self.complete = True


def parse_json(url: str, body: bytes) -> Any:
    """The JSON of an answer. Raises NotJson."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # brackets without end
        raise NotJson(f"{without_query(url)}: the answer is no JSON") from None


def https_url(url: str, status: int, details: Mapping[str, Any]) -> str:
    """The URL to use instead of a plain one: nsqd with `--tls-required` answers 403 and its `https_port`.

    Empty if the answer says something else.
    """
    port = details.get("https_port")
    if status != 403 or not url.startswith("http://") or type(port) is not int or not 0 < port < 1 << 16:
        return ""
    parts = urlsplit(url)
    return parts._replace(scheme="https", netloc=join_address(parts.hostname or "", port)).geturl()
