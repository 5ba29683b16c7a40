"""The server over real sockets: order, flow control, timeouts, and the ways a connection ends."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nsquark.http import (
    HttpError,
    Limits,
    PendingResponse,
    Request,
    Response,
    Router,
    plain_text,
    v1_empty,
    v1_text,
)
from tests.http.served import Served, chunked, get, post

Serve = Callable[..., Awaitable[Served]]


class Routes:
    """A router with one route of each kind."""

    def __init__(self) -> None:
        self.promises: list[PendingResponse] = []
        self.gate = asyncio.Event()
        self.handled: list[str] = []
        self.router = Router()
        self.router.add("GET", "/ping", self.ping)
        self.router.add("GET", "/quiet", self.ping, logged=False)
        self.router.add("POST", "/echo", self.echo, max_body=1000, too_big="MSG_TOO_BIG")
        self.router.add("GET", "/promise", self.promise)
        self.router.add("GET", "/coroutine", self.coroutine)
        self.router.add("GET", "/future", lambda request: asyncio.ensure_future(self.coroutine(request)))
        self.router.add("GET", "/large", lambda _request: v1_text("x" * 1_000_000))
        self.router.add("GET", "/medium", lambda _request: v1_text("x" * 15_000))
        self.router.add("GET", "/peer", lambda request: v1_text(request.peer))
        for name in ("error", "crash"):
            self.router.add("GET", f"/{name}", getattr(self, name))
            self.router.add("GET", f"/late/{name}", self.late(getattr(self, name)))

    def ping(self, request: Request) -> Response:
        self.handled.append(request.path)
        return plain_text(200, "OK")

    def echo(self, request: Request) -> Response:
        return v1_text(request.body.decode())

    def promise(self, _request: Request) -> PendingResponse:
        self.promises.append(PendingResponse())
        return self.promises[-1]

    async def coroutine(self, request: Request) -> Response:
        await self.gate.wait()
        self.handled.append(request.path)
        return v1_text(request.path)

    def error(self, _request: Request) -> Response:
        raise HttpError(404, "TOPIC_NOT_FOUND")

    def crash(self, _request: Request) -> Response:
        raise ZeroDivisionError

    def late(self, handler: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return handler(request)

        return handle


@pytest.fixture
async def routes() -> Routes:
    return Routes()


@pytest.fixture
async def served(serve: Serve, routes: Routes) -> Served:
    return await serve(routes.router)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for sets no event
        await asyncio.sleep(0.001)


# Answers


async def test_an_answer_has_nsqs_headers_and_a_date(served: Served) -> None:
    answer = await served.ask(post("/echo", b"hello"))
    assert (answer.status, answer.body) == (200, b"hello")
    assert list(answer.headers) == ["Content-Type", "X-Nsq-Content-Type", "Content-Length", "Date"]
    assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", answer.headers["Date"])


async def test_a_connection_is_kept(served: Served) -> None:
    client = await served.client()
    for _ in range(3):
        assert (await client.ask(get("/ping"))).body == b"OK"
    assert (await client.ask(get("/nothing"))).status == 404
    assert (await client.ask(post("/ping", b"x" * 5000))).status == 405
    assert (await client.ask(chunked("/echo", b"a", b"b"))).body == b"ab"


async def test_a_connection_is_closed_when_asked(served: Served) -> None:
    client = await served.client()
    assert (await client.ask(get("/ping", "Connection: close"))).headers["Connection"] == "close"
    assert await client.closed()


async def test_http_1_0_is_closed_unless_asked(served: Served) -> None:
    client = await served.client()
    kept = await client.ask(get("/ping", "Connection: Keep-Alive", version="1.0"))
    assert kept.headers["Connection"] == "keep-alive"
    assert (await client.ask(get("/ping", version="1.0"))).headers["Connection"] == "close"
    assert await client.closed()


async def test_the_answer_to_head_has_no_body(served: Served) -> None:
    client = await served.client()
    client.send(get("/ping", method="HEAD"))
    answer = await client.answer(bodiless=True)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, OPTIONS")
    assert int(answer.headers["Content-Length"]) > 0
    assert (await client.ask(get("/ping"))).body == b"OK"


async def test_a_large_answer_arrives_whole(served: Served) -> None:
    assert (await served.ask(get("/large"))).body == b"x" * 1_000_000


async def test_answers_that_the_socket_takes_in_part_arrive_whole(served: Served) -> None:
    client = await served.client()
    for _ in range(1000):
        client.send(get("/medium"))
        await asyncio.sleep(0)  # the answers are not read yet
    for _ in range(1000):
        assert (await client.answer()).body == b"x" * 15_000


async def test_a_unix_socket_serves_too(served: Served, tmp_path: Path) -> None:
    client = await served.listen_unix(str(tmp_path / "http.sock"))
    assert (await client.ask(get("/peer"))).body == b"@"


async def test_the_peer_is_known(served: Served) -> None:
    client = await served.client()
    host, port = client.writer.get_extra_info("sockname")
    assert (await client.ask(get("/peer"))).body == f"{host}:{port}".encode()


# Handlers that fail


@pytest.mark.parametrize("path", ["/error", "/late/error"])
async def test_a_handler_may_raise_its_answer(served: Served, path: str) -> None:
    answer = await served.ask(get(path))
    assert (answer.status, answer.body) == (404, b'{"message":"TOPIC_NOT_FOUND"}')


@pytest.mark.parametrize("path", ["/crash", "/late/crash"])
async def test_a_crash_is_an_internal_error_and_logged(
    served: Served, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await served.client()
    answer = await client.ask(get(path))
    assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert f"GET {path} failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert (await client.ask(get("/ping"))).status == 200


# Pipelining


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    client = await served.client()
    client.send(b"".join(post("/echo", b"%d" % i) for i in range(500)))
    for i in range(500):
        assert (await client.answer()).body == b"%d" % i


async def test_promises_are_answered_in_order_however_they_are_resolved(
    served: Served, routes: Routes
) -> None:
    client = await served.client()
    client.send(get("/promise") * 2 + get("/ping") + get("/promise"))
    await until(lambda: len(routes.promises) == 3)
    routes.promises[2].resolve(v1_text("third"))
    routes.promises[1].resolve(v1_text("second"))
    routes.promises[0].resolve(v1_text("first"))
    assert [(await client.answer()).body for _ in range(4)] == [b"first", b"second", b"OK", b"third"]


async def test_a_promise_may_be_resolved_before_it_is_given(serve: Serve) -> None:
    def promise(_request: Request) -> PendingResponse:
        pending = PendingResponse()
        pending.resolve(v1_text("kept"))
        return pending

    router = Router()
    router.add("GET", "/promise", promise)
    assert (await (await serve(router)).ask(get("/promise"))).body == b"kept"


async def test_a_handler_may_resolve_the_promises_of_others(serve: Serve) -> None:
    promises: list[PendingResponse] = []

    def promise(_request: Request) -> PendingResponse:
        if promises:
            promises[-1].resolve(v1_text(f"{len(promises)}"))
        promises.append(PendingResponse())
        return promises[-1]

    router = Router()
    router.add("GET", "/promise", promise)
    client = await (await serve(router)).client()
    client.send(get("/promise") * 3000)
    for i in range(1, 3000):
        assert (await client.answer()).body == b"%d" % i
    promises[-1].resolve(v1_empty())
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("path", ["/coroutine", "/future"])
async def test_what_comes_behind_a_coroutine_waits_for_it(served: Served, routes: Routes, path: str) -> None:
    client = await served.client()
    client.send(get(path) + get("/ping"))
    await until(lambda: served.server.connections)
    await asyncio.sleep(0.02)
    assert routes.handled == []
    routes.gate.set()
    assert [(await client.answer()).body for _ in range(2)] == [path.encode(), b"OK"]
    assert routes.handled == [path, "/ping"]


async def test_only_so_many_requests_are_under_way(serve: Serve, routes: Routes) -> None:
    served = await serve(routes.router, Limits(max_pipelined=3))
    client = await served.client()
    client.send(get("/promise") * 10)
    for done in range(10):
        await until(lambda: len(routes.promises) > done)  # noqa: B023 - called before the next turn
        assert len(routes.promises) <= done + 3
        routes.promises[done].resolve(v1_empty())
        assert (await client.answer()).status == 200


async def test_a_client_that_does_not_read_is_not_answered_for_ever(served: Served, routes: Routes) -> None:
    calls = 0

    def large(_request: Request) -> Response:
        nonlocal calls
        calls += 1
        return v1_text("x" * 1_000_000)

    routes.router.add("GET", "/count", large)
    client = await served.client()
    client.writer.transport.pause_reading()
    client.send(get("/count") * 200)
    await until(lambda: calls)
    await asyncio.sleep(0.05)
    assert calls < 50
    client.writer.transport.resume_reading()
    for _ in range(200):
        assert len((await client.answer()).body) == 1_000_000
    assert calls == 200


# What is refused


async def test_a_body_too_long_is_refused_before_it_is_sent(served: Served) -> None:
    client = await served.client()
    answer = await client.ask(get("/echo", "Content-Length: 1001", method="POST"))
    assert (answer.status, answer.body) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert answer.headers["Connection"] == "close"
    assert await client.closed()


async def test_a_client_that_sends_on_regardless_sees_the_answer(served: Served) -> None:
    client = await served.client()
    client.send(post("/echo", b"x" * 3_000_000))
    await client.writer.drain()
    assert (await client.answer()).status == 413


async def test_garbage_is_a_bad_request_in_its_turn(served: Served, routes: Routes) -> None:
    client = await served.client()
    client.send(get("/promise") + b"\x16\x03\x01\x00")
    await until(lambda: routes.promises)
    routes.promises[0].resolve(v1_text("first"))
    assert (await client.answer()).body == b"first"
    answer = await client.answer()
    assert (answer.status, answer.body) == (400, b"400 Bad Request")
    assert "X-Nsq-Content-Type" not in answer.headers
    assert await client.closed()


# Expect: 100-continue


async def test_a_client_that_waits_is_asked_to_go_on(served: Served) -> None:
    client = await served.client()
    client.send(get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST"))
    assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.ask(b"hello")).body == b"hello"


async def test_it_is_asked_after_earlier_requests_are_answered(served: Served, routes: Routes) -> None:
    client = await served.client()
    client.send(get("/promise") + get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST"))
    await until(lambda: routes.promises)
    routes.promises[0].resolve(v1_text("first"))
    assert (await client.answer()).body == b"first"
    assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.ask(b"hello")).body == b"hello"


async def test_it_is_not_asked_for_what_is_too_long(served: Served) -> None:
    answer = await served.ask(get("/echo", "Content-Length: 5000", "Expect: 100-continue", method="POST"))
    assert answer.status == 413


# The end of a connection


async def test_a_client_that_half_closes_is_answered(served: Served, routes: Routes) -> None:
    client = await served.client()
    client.send(get("/promise"))
    client.writer.write_eof()
    await until(lambda: routes.promises)
    await asyncio.sleep(0.02)
    routes.promises[0].resolve(v1_text("answered"))
    assert (await client.answer()).body == b"answered"
    assert await client.closed()


async def test_a_body_cut_short_is_an_internal_error(served: Served) -> None:
    client = await served.client()
    client.send(post("/echo", b"hello")[:-1])
    client.writer.write_eof()
    assert (await client.answer()).status == 500
    assert await client.closed()


async def test_a_client_that_leaves_is_forgotten(served: Served, routes: Routes) -> None:
    client = await served.client()
    client.send(get("/promise") + get("/coroutine"))
    await until(lambda: routes.promises)
    # With no time to linger, closing is a reset; an ordinary end might be that of the client's side only.
    linger = struct.pack("ii", 1, 0)
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.writer.transport.abort()
    await until(lambda: not served.server.connections)
    routes.promises[0].resolve(v1_empty())
    routes.gate.set()
    await asyncio.sleep(0.02)
    assert routes.handled == ["/coroutine"]


async def test_a_silent_client_is_closed(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    silent, polite = await served.client(), await served.client()
    await polite.ask(get("/ping"))
    assert await silent.closed()
    assert await polite.closed()


@pytest.mark.parametrize("data", [b"GET /pi", post("/echo", b"hello")[:-1]])
async def test_a_slow_request_times_out(serve: Serve, routes: Routes, quick: Limits, data: bytes) -> None:
    served = await serve(routes.router, quick)
    client = await served.client()
    answer = await client.ask(data)
    assert (answer.status, answer.headers["Connection"]) == (408, "close")
    assert await client.closed()


async def test_a_trickle_does_not_put_off_the_timeout(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    client = await served.client()
    client.send(b"GET /ping HTTP/1.1\r\nX: ")

    async def trickle() -> None:
        while True:
            await asyncio.sleep(0.03)
            client.send(b"y")

    trickling = asyncio.create_task(trickle())
    try:
        assert (await asyncio.wait_for(client.answer(), 2)).status == 408
    finally:
        trickling.cancel()


async def test_a_busy_pipeline_is_no_slow_request(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    client = await served.client()
    request = get("/ping")
    client.send(request[:9])
    for _ in range(20):
        await asyncio.sleep(0.03)
        client.send(request[9:] + request[:9])
        assert (await client.answer()).status == 200


async def test_a_slow_handler_is_not_the_clients_fault(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    client = await served.client()
    client.send(get("/promise"))
    await asyncio.sleep(0.6)
    routes.promises[0].resolve(v1_text("at last"))
    assert (await client.answer()).body == b"at last"


async def test_a_client_that_never_reads_is_cut_off(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(get("/large") * 20)
        await until(lambda: served.server.connections)
        await asyncio.wait_for(until(lambda: not served.server.connections), 5)


async def test_a_slow_reader_is_not_cut_off(serve: Serve, routes: Routes, quick: Limits) -> None:
    served = await serve(routes.router, quick)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 18)
    writer.write(get("/large") * 11 + get("/large", "Connection: close"))
    got = 0
    while piece := await reader.read(500_000):
        got += len(piece)
        await asyncio.sleep(0.02)
    writer.close()
    assert got > 12_000_000


async def test_closing_the_server_ends_all_connections(served: Served, routes: Routes) -> None:
    idle, busy, waiting = [await served.client() for _ in range(3)]
    await idle.ask(get("/ping"))
    busy.send(get("/promise"))
    waiting.send(get("/coroutine"))
    await until(lambda: routes.promises and len(served.server.connections) == 3)
    await asyncio.sleep(0.02)
    served.server.close()
    for client in (idle, busy, waiting):
        assert await client.closed()
    assert not served.server.connections


# The log


async def test_requests_are_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsquark.http")
    client = await served.client()
    port = client.writer.get_extra_info("sockname")[1]
    await client.ask(get("/ping?a=b"))
    await client.ask(post("/nothing", b""))
    await client.ask(get("/quiet"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert re.fullmatch(rf"200 GET /ping\?a=b \(127\.0\.0\.1:{port}\) \d+(\.\d+)?[µm]s", lines[0])
    assert lines[1].startswith("404 POST /nothing (")
