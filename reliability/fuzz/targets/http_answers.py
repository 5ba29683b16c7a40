"""Answers of a daemon as the HTTP clients read them: the head, the body, its JSON and its errors."""

from __future__ import annotations

import asyncio

from nsquark.errors import ConnectionLost
from nsquark.http.client.connection import ClientConnection
from nsquark.http.client.protocol import BadStatus, NotJson, ResponseParser, https_url, parse_json
from reliability.fuzz.memory import MemoryTransport, run_loop
from reliability.fuzz.target import Target, bytewise, pieces_of, require_same

URL = "http://127.0.0.1:4151/stats"
LIMIT = 1000


def _read(pieces: list[bytes]) -> tuple[object, ...]:
    """The answer as a client understands it that stops reading when the answer is complete."""
    parser = ResponseParser(URL, LIMIT)
    try:
        for piece in pieces:
            parser.feed(piece)
            if parser.complete:
                break
        else:
            parser.feed(b"")
    except ConnectionLost:
        return ("lost",)
    response = parser.response()
    return response.status, sorted(response.headers.items()), response.body


def _kept(pieces: list[bytes]) -> tuple[object, ...]:
    """The answer as a connection understands it that is kept for other requests."""

    async def talk() -> tuple[object, ...]:
        connection, transport = ClientConnection(LIMIT, True), MemoryTransport()
        connection.connection_made(transport)
        answer = connection.send(b"GET", asyncio.get_running_loop().time() + 60)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)
        connection.connection_lost(None)
        try:
            reply = await answer
        except ConnectionLost:
            return ("lost",)
        return reply.status, reply.location, reply.body

    return run_loop(talk())


def _understood(status: int, body: bytes) -> object:
    if status != 200:
        error = BadStatus(URL, status, body)
        return error.message, sorted(error.details), https_url(URL, status, error.details)
    try:
        return repr(parse_json(URL, body))
    except NotJson as error:
        return str(error)


def run(data: bytes) -> object:
    whole = _read([data])
    if len(whole) > 1:
        require_same("in pieces", whole, _read(pieces_of(data)))
        require_same("byte by byte", whole, _read(bytewise(data)))
    kept = _kept([data])
    require_same("a kept connection, in pieces", kept, _kept(pieces_of(data)))
    require_same("a kept connection, byte by byte", kept, _kept(bytewise(data)))
    half = data.partition(b"\r\n\r\n")[2]
    return whole, kept, _understood(200, half), _understood(403, half)


def _answer(status: str, body: bytes, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode() + body


def seeds() -> list[bytes]:
    return [
        _answer("200 OK", b'{"topics":[]}', "Content-Length: 13", "Content-Type: application/json"),
        _answer("200 OK", b"5\r\n[1,2]\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        _answer("200 OK", b"[1]"),
        _answer("403 Forbidden", b'{"message":"TLS_REQUIRED","https_port":4152}', "Content-Length: 44"),
        _answer("404 Not Found", b'{"message":["a"]}', "Content-Length: 17"),
        _answer("100 Continue", b"") + _answer("200 OK", b"", "Content-Length: 0"),
        _answer("204 No Content", b"") + _answer("200 OK", b"", "Content-Length: 0"),
        _answer("101 Switching Protocols", b"xyz", "Upgrade: h2c", "Connection: Upgrade"),
        b"\0\0\0\x0fE_BAD_PROTOCOL",
        _answer("500 Oops", b"[" * 300),
    ]


TARGET = Target(
    name="http_answers",
    run=run,
    seeds=seeds,
    modules=("nsquark.http.client.protocol", "nsquark.http.client.connection"),
    words=(
        b"HTTP/1.1 200 OK\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"Connection: upgrade\r\n",
        b'"https_port":',
        b"[" * 1000,
        b'{"a":' * 300,
        b"NaN",
        b"1" * 5000,
        b"\\ud800",
        b"\xff",
    ),
    max_length=12000,
)
