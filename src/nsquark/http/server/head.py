"""The part of a request's head that is about the connection, and whether the server reads on after it.

The parser has checked the syntax, and that lengths and encodings do not contradict each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from httptools import HttpRequestParser

from nsquark.errors import NsquarkError

from .message import CLOSE, KEEP_ALIVE, Request, Response, plain_text
from .router import BAD_REQUEST

if TYPE_CHECKING:
    from .server import Limits

MALFORMED = plain_text(400, "400 Bad Request")
NO_HOST = plain_text(400, "400 Bad Request: missing required Host header")
EXPECTATION_FAILED = plain_text(417, "417 Expectation Failed")
HEAD_TOO_BIG = plain_text(431, "431 Request Header Fields Too Large")
NO_SUCH_ENCODING = plain_text(501, "Unsupported transfer encoding")
WRONG_VERSION = plain_text(505, "505 HTTP Version Not Supported: unsupported protocol version")

# The flags of a request that is not ordinary.
EXPECTS_CONTINUE = 1
WANTS_UPGRADE = 2
CHUNKED = 4


class Refused(NsquarkError):
    """Nothing more is read: this response, then the end."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def read_head(
    request: Request, headers: dict[bytes, bytes], parser: HttpRequestParser, limits: Limits
) -> tuple[int, int]:
    """Settle whether the connection is kept, and return the flags above and the body's length, if told.

    Raises Refused, before any of the body is taken, with the answer to a request that cannot be served.
    """
    route = request.target.route
    if route is BAD_REQUEST:
        raise Refused(MALFORMED)
    if len(headers) > limits.max_headers or _size(headers) > limits.max_head:
        raise Refused(HEAD_TOO_BIG)
    flags = length = 0
    has_host = has_connection = False
    for name, value in headers.items():
        known = name.lower()
        if known == b"host":
            has_host = True
        elif known == b"content-length":
            length = int(value)
            if length > route.max_body:
                raise Refused(route.too_big)
        elif known == b"connection":
            has_connection = True
        elif known == b"expect":
            if value.strip().lower() != b"100-continue":
                raise Refused(EXPECTATION_FAILED)
            # To HTTP/1.0 a `100 Continue` would be the answer.
            flags |= EXPECTS_CONTINUE if parser.get_http_version() == "1.1" else 0
        elif known == b"upgrade" and parser.should_upgrade():
            flags |= WANTS_UPGRADE
        elif known == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise Refused(NO_SUCH_ENCODING)
            if parser.get_http_version() == "1.0":  # which has none: a proxy may see another end of the body
                raise Refused(MALFORMED)
            flags |= CHUNKED
    if has_connection or not has_host or not parser.should_keep_alive():
        _settle_keep_alive(request, parser, has_host)
    return flags, length


def _settle_keep_alive(request: Request, parser: HttpRequestParser, has_host: bool) -> None:
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise Refused(WRONG_VERSION)
    if version == "1.1" and not has_host:
        raise Refused(NO_HOST)
    if not parser.should_keep_alive():
        request.connection_header = CLOSE
    elif version == "1.0":
        request.connection_header = KEEP_ALIVE


def without_upgrade(request: Request, headers: dict[bytes, bytes], parser: HttpRequestParser) -> bytes:
    """The same head without the wish to change the protocol.

    Java's client asks for `h2c` on every request, curl with --http2. A server may ignore that and Go's does,
    but the parser would take the body for the other protocol's bytes.
    """
    version = parser.get_http_version().encode()
    lines = [request.target.method + b" " + request.uri + b" HTTP/" + version]
    for name, value in headers.items():
        if name.lower() == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            value = b",".join(tokens)
        if name.lower() != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _size(headers: dict[bytes, bytes]) -> int:
    return sum(map(len, headers)) + sum(map(len, headers.values()))
