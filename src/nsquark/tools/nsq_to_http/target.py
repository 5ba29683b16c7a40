"""One URL that messages are sent to, and the request that a message becomes there.

All that is the same in every request is put together once.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import SplitResult, quote_plus, unquote

from nsquark.errors import UsageError
from nsquark.http.client.pool import ClientRequest, origin_of, quote_url
from nsquark.http.client.protocol import pack_request, parse_url

from ..command.running import ToolError

_DATA = "nsq-to-http-data-5f8d1c"  # stands for the message in a GET address while that is taken apart
_FIXED = {"host", "content-length", "transfer-encoding", "trailer"}  # as in NSQ, not the user's


class Target(Protocol):
    address: str
    """As the user gave it, without a password."""

    shown: str
    """For errors: also without a query, which may be a secret too."""

    origin: tuple[str, str, int]

    def pack(self, body: bytes) -> bytes:
        """The request for a message."""

    def request(self, body: bytes) -> ClientRequest:
        """The same request, to be redirected."""

    def accepts(self, status: int) -> bool: ...


class PostTarget:
    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        parts = _parse(address, address)
        self._parts = parts
        self._headers = _with_password(parts, headers)
        self.address, self.shown = _shown(address, parts)
        self.origin = origin_of(parts)
        packed = pack_request("POST", parts, b"", self._headers, keep_alive=True)
        self._head = packed.removesuffix(b"0\r\n\r\n")

    def pack(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def request(self, body: bytes) -> ClientRequest:
        return ClientRequest("POST", self._parts, self._headers, body)

    def accepts(self, status: int) -> bool:
        return 200 <= status < 300


class GetTarget:
    """The message goes where `%s` is, escaped for a query. Any other `%` stays as it is."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        self._template = quote_url(address.replace("%s", _DATA))
        parts = _parse(self._template, address)
        if _DATA not in parts.path + parts.query:
            raise ToolError(f"invalid GET address - %s is neither in its path nor in its query: {address!r}")
        self._headers = _with_password(parts, headers)
        self.address, self.shown = _shown(address, parts)
        self.shown = self.shown.replace(_DATA, "%s")
        self.origin = origin_of(parts)
        packed = pack_request("GET", parts, b"", self._headers, keep_alive=True)
        self._before, _, self._after = packed.partition(_DATA.encode())

    def pack(self, body: bytes) -> bytes:
        return self._before + quote_plus(body).encode() + self._after

    def request(self, body: bytes) -> ClientRequest:
        return ClientRequest("GET", parse_url(self._template.replace(_DATA, quote_plus(body))), self._headers)

    def accepts(self, status: int) -> bool:
        return status == 200


def make_headers(program: str, content_type: str, given: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request. `given` ones win, whatever their case. `content_type` may be empty."""
    headers = {"User-Agent": program, "Accept-Encoding": "gzip"}
    if content_type:
        headers["Content-Type"] = content_type
    for name, value in given.items():
        for other in [each for each in headers if each.lower() == name.lower()]:
            del headers[other]
        if name.lower() not in _FIXED:
            headers[name] = value
    return headers


def _parse(url: str, address: str) -> SplitResult:
    try:
        parts = parse_url(quote_url(url))
        origin_of(parts)  # its port may be none
    except (UsageError, ValueError):
        raise ToolError(f"invalid address - no http or https URL: {address!r}") from None
    return parts


def _with_password(parts: SplitResult, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, and the user and password of the URL as a header, unless there is one."""
    if parts.username is None or any(name.lower() == "authorization" for name in headers):
        return dict(headers)
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {**headers, "Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _shown(address: str, parts: SplitResult) -> tuple[str, str]:
    userinfo, at, host = parts.netloc.rpartition("@")
    return address.replace(userinfo + at, "", 1) if at else address, f"{parts.scheme}://{host}{parts.path}"
