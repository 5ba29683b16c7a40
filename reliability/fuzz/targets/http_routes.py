"""Requests to the HTTP routes of nsqd, over a real broker: none may fail in an unexpected way.

The input is the bytes of pipelined requests. A route that waits on purpose may leave its answer open.
"""

from __future__ import annotations

import re

from nsquark.http import HttpServer
from nsquark.nsqd.http import routes
from reliability.fuzz.brokers import broker, settle
from reliability.fuzz.memory import LoggedErrors, MemoryTransport, run_loop
from reliability.fuzz.target import Target, Wrong

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_SETTINGS = {"max_msg_size": 100, "max_body_size": 300}


async def _ask(data: bytes) -> list[int]:
    async with broker(**_SETTINGS) as known:
        known.topic("t").channel("ch")
        server = HttpServer(routes.router(known))
        transport, connection = MemoryTransport(), server.protocol()
        connection.connection_made(transport)
        connection.data_received(data)
        for _ in range(4):
            await settle()
        if not transport.closed:
            connection.eof_received()
            await settle()
        written = bytes(transport.written)
        connection.connection_lost(None)
        server.close()
        await settle()
        if written and not written.startswith(b"HTTP/1.1 "):
            raise Wrong(f"{written[:100]!r} is no answer")
        return [int(each) for each in _STATUS.findall(written)]


def run(data: bytes) -> object:
    if re.search(rb"(?i)/debug", data) or b"%64ebug" in data:
        return "profiles take their time"
    with LoggedErrors() as logged:
        statuses = run_loop(_ask(data))
        logged.check()
    return statuses[:1]  # of later ones, some wait for threads


def _request(line: str, body: bytes = b"") -> bytes:
    return f"{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def seeds() -> list[bytes]:
    mpub = b"\0\0\0\2\0\0\0\1a\0\0\0\1b"
    return [
        _request("POST /pub?topic=t&defer=1000", b"body")
        + _request("GET /stats?format=json&topic=t&channel=ch"),
        _request("POST /mpub?topic=t&binary=true", mpub) + _request("POST /mpub?topic=u", b"a\nb\n\nc"),
        _request("POST /topic/create?topic=n")
        + _request("POST /topic/delete?topic=n")
        + _request("POST /topic/pause?topic=t"),
        _request("POST /channel/create?topic=t&channel=x")
        + _request("POST /channel/empty?topic=t&channel=ch"),
        _request("POST /channel/seek?topic=t&channel=ch&to=start")
        + _request("POST /channel/pause?topic=t&channel=ch"),
        _request("GET /log/read?topic=t&start=0&end=5&index=0") + _request("GET /log/ranges?topic=t"),
        _request("GET /config/nsqlookupd_tcp_addresses")
        + _request("PUT /config/nsqlookupd_tcp_addresses", b'["a:1"]'),
        _request("PUT /config/log_level", b"debug")
        + _request("GET /config/nothing")
        + _request("GET /metrics"),
        _request("POST /staged/put?app=a&batch=1&partition=0&attempt=x&topic=t", mpub)
        + _request("GET /staged?app=a"),
        _request("POST /staged/publish?app=a&batch=1", b'{"parts":[[0,"x",1]]}')
        + _request("GET /info")
        + _request("GET /ping"),
        _request("POST /reports?query=q", b'{"a":' * 400) + _request("GET /peek?topic=t&channel=ch&count=5"),
    ]


def _words() -> tuple[bytes, ...]:
    """The paths and arguments that the routes know."""
    from pathlib import Path

    text = (Path(routes.__file__).parent / "openapi.yaml").read_text()
    paths = re.findall(r"^  (/[a-z_/]+)", text, re.MULTILINE)
    names = re.findall(r"name: ([a-z_]+)", text)
    return (*(each.encode() for each in paths), *(b"&" + each.encode() + b"=" for each in sorted(set(names))))


TARGET = Target(
    name="http_routes",
    run=run,
    seeds=seeds,
    modules=(
        "nsquark.nsqd.http.routes",
        "nsquark.nsqd.http.arguments",
        "nsquark.nsqd.http.staged",
        "nsquark.http.server.connection",
    ),
    words=(
        *_words(),
        b"topic=t",
        b"-1",
        b"1e9",
        b"99999999999999999999",
        b"%ff",
        b"true",
        b"1h",
        b"Content-Length: 300",
    ),
    max_length=1500,
)
