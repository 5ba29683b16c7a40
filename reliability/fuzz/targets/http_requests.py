"""Requests to an HTTP server: `http.reader`, with the router that resolves their paths and queries.

A reader that has seen the heads before must understand the same as one that has not.
"""

from __future__ import annotations

from nsquark.http import Limits, Router, v1_empty
from nsquark.http.server.reader import CHUNK_OVERHEAD, RequestReader
from reliability.fuzz.target import Target, Wrong, bytewise, pieces_of, require_same

LIMITS = Limits(max_head=500, max_headers=10)
SMALL_BODY = 10
ENDLESS = LIMITS.max_head + CHUNK_OVERHEAD * SMALL_BODY  # bytes in which no request to /pub may be incomplete


def _router() -> Router:
    router = Router()
    router.add("GET", "/ping", lambda _request: v1_empty())
    router.add("POST", "/pub", lambda _request: v1_empty(), max_body=SMALL_BODY, too_big="MSG_TOO_BIG")
    router.add("POST", "/topic/create", lambda _request: v1_empty())
    router.add("GET", "/config/<opt>", lambda _request: v1_empty())
    router.add("PUT", "/config/<opt>", lambda _request: v1_empty(), max_body=100)
    return router


_EXPERIENCED = _router()


def _read(pieces: list[bytes], router: Router) -> list[object]:
    reader = RequestReader(None, router, LIMITS)
    for piece in pieces:
        if not reader.done:
            reader.feed(piece)
    partial = reader.partial and not reader.done
    reader.end()
    seen: list[object] = [partial]
    for request in reader.requests:
        target = request.target
        if request.response is not None:
            seen.append((request.response.status, request.response.body))
        else:
            query = None if target.query is None else sorted(target.query.items())
            route = target.route.handler(request)
            seen.append(
                (
                    request.method,
                    request.uri,
                    target.path,
                    query,
                    target.argument,
                    request.body,
                    request.keep_alive,
                    getattr(route, "status", 0),
                )
            )
            if len(request.body) > target.route.max_body:
                raise Wrong(f"a body of {len(request.body)} bytes")
    reader.close()
    return seen


def run(data: bytes) -> object:
    if len(_EXPERIENCED.known_heads) > 500:
        _EXPERIENCED.known_heads.clear()
    whole = _read([data], _router())
    again = _read([data], _EXPERIENCED)
    require_same("known heads", whole, again)
    require_same("heads known for sure", whole, _read([data], _EXPERIENCED))
    # A head or body that is over its limit may be refused before its end, and as another thing than
    # where all of it is there; what came before it must be the same.
    pieces, single = _read(pieces_of(data), _router()), _read(bytewise(data), _router())
    if not any(_over_a_limit(seen, len(data)) for seen in (whole, single, pieces)):
        require_same("byte by byte", whole, single)
        require_same("in pieces", whole, pieces)
    return whole


def _over_a_limit(seen: list[object], size: int) -> bool:
    """Whether a request was refused for its size, or may have been: endless trailers are answered 400."""
    refusals = (400, 413, 431) if size > ENDLESS else (413, 431)
    return any(isinstance(each, tuple) and each[0] in refusals for each in seen)


def _request(line: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, "Host: h", *headers, "", ""]).encode() + body


def seeds() -> list[bytes]:
    get = _request("GET /ping HTTP/1.1")
    h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")
    return [
        get * 3,
        _request("POST /pub?topic=a%20b+c&defer=1&x HTTP/1.1", "Content-Length: 4", body=b"body") + get,
        _request(
            "POST /pub HTTP/1.1",
            "Transfer-Encoding: chunked",
            body=b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n",
        ),
        _request("POST /pub HTTP/1.1", "Expect: 100-continue", "Content-Length: 3", body=b"abc"),
        _request("GET /ping HTTP/1.1", *h2c) + get,
        _request("POST /pub HTTP/1.1", "Content-Length: 4", *h2c, body=b"body") + get,
        _request("GET /ping HTTP/1.0", "Connection: keep-alive") + get,
        _request("GET /ping HTTP/1.1", "Connection: close") + get,
        _request("OPTIONS * HTTP/1.1") + _request("GET //PING/ HTTP/1.1") + _request("DELETE /ping HTTP/1.1"),
        _request("GET http://other/config/a%2Fb?%zz HTTP/1.1") + _request("PUT /config/x?a=1;b HTTP/1.1"),
        b"\r\n" + get + b"\n" + get,
        _request("CONNECT a:1 HTTP/1.1") + get,
    ]


TARGET = Target(
    name="http_requests",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.http.server.reader",
        "nsquark.http.server.head",
        "nsquark.http.query",
        "nsquark.http.server.router",
    ),
    words=(
        b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /pub",
        b"Content-Length: 5\r\n",
        b"Connection: close\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b"Upgrade: h2c\r\nConnection: upgrade\r\n",
        b"%2F",
        b"%",
        b"?",
        b"&",
        b"\r\n",
        b"\n",
        b" HTTP/1.0",
        b"Expect: 100-continue\r\n",
        b"HTTP/2.0",
        b"://",
    ),
    max_length=3000,
)
