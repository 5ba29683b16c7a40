"""A small HTTP client: one request, one connection, a bounded answer, in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from nsquark.errors import ConnectFailed, ConnectionLost, NsquarkError, UsageError

MAX_BODY = 256 << 20
_MAX_HEAD = _READ = 65536


@dataclass(slots=True)
class Answer:
    """What a request was answered with; header names are in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class BadStatus(NsquarkError):
    """Not the 200 it should be. `message` is what the server's JSON says, if it says it that way."""

    def __init__(self, url: str, status: int, body: bytes) -> None:
        self.url = url
        self.status = status
        self.body = body
        self.message = body[:200].decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self.message = str(json.loads(body)["message"])
        super().__init__(f"{url}: {status} {self.message}".rstrip())


async def request(
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    connect_timeout: float | None = None,
    tls: ssl.SSLContext | None = None,
    max_body: int = MAX_BODY,
) -> Answer:
    """Ask once. Raises ConnectFailed if nobody could be asked, ConnectionLost if no whole answer came.

    `timeout` is for all of it, `connect_timeout` for the first part. The errors leave the query out: it may
    hold a secret.
    """
    parts = urlsplit(url)
    shown = url.partition("?")[0]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{shown!r} is no http or https URL")
    context = None
    if parts.scheme == "https":
        context = tls if tls is not None else ssl.create_default_context()
    port = parts.port or (443 if context else 80)
    try:
        async with asyncio.timeout(timeout):
            try:
                async with asyncio.timeout(connect_timeout):
                    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
            except TimeoutError:
                raise ConnectFailed(f"{shown}: no connection within {connect_timeout or timeout} s") from None
            except OSError as error:
                raise ConnectFailed(f"{shown}: {error.strerror or error}") from None
            try:
                writer.write(
                    _pack(method, parts.netloc, _target(parts.path, parts.query), body, headers or {})
                )
                return await _read(reader, shown, max_body)
            except OSError as error:
                raise ConnectionLost(f"{shown}: {error}") from None
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise ConnectFailed(f"{shown}: no answer within {timeout} s") from None


def _target(path: str, query: str) -> str:
    return (path or "/") + ("?" + query if query else "")


def _pack(method: str, host: str, target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host.rpartition('@')[2]}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body)}")
    for line in lines:
        if "\r" in line or "\n" in line:
            raise UsageError(f"a line break in {line!r}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + body


class _Collector:
    """What httptools calls."""

    def __init__(self, max_body: int) -> None:
        self.answer = Answer()
        self.pieces: list[bytes] = []
        self.size = 0
        self.head_complete = self.complete = False
        self._max_body = max_body

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        if self.size > self._max_body:
            raise ConnectionLost(f"an answer of more than {self._max_body} bytes")
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.complete = True


async def _read(reader: asyncio.StreamReader, url: str, max_body: int) -> Answer:
    collector = _Collector(max_body)
    parser = httptools.HttpResponseParser(collector)
    size = 0
    try:
        while not collector.complete:
            data = await reader.read(_READ)
            size += len(data)
            if not collector.head_complete and size > _MAX_HEAD:
                raise ConnectionLost(f"{url}: a head of more than {_MAX_HEAD} bytes")
            if not data:
                # without a length, the end of the connection is the end of the body
                lengths = {"content-length", "transfer-encoding"} & collector.answer.headers.keys()
                if not collector.head_complete or lengths:
                    raise ConnectionLost(f"{url}: the connection ended before the answer did")
                break
            parser.feed_data(data)
    except httptools.HttpParserError as error:
        raise ConnectionLost(f"{url}: {error.__cause__ or error.__context__ or error}") from None
    answer = collector.answer
    answer.status = parser.get_status_code()
    answer.body = b"".join(collector.pieces)
    return answer
