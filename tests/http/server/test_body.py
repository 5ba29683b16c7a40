"""Bodies that are sent piece by piece, from threads or through the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsquark.errors import ConnectionLost
from nsquark.http import HttpError, Request, Response, Router, v1_stream, v1_text
from nsquark.http.server import body
from tests.http.conftest import QUICK
from tests.http.served import Served, get

Serve = Callable[..., Any]


@pytest.fixture(params=["socket", "transport"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How pieces are sent: with TLS only the transport can."""
    if request.param == "transport":
        monkeypatch.setattr(body, "_duplicate", lambda transport: -1)
    return str(request.param)


class Streams:
    """A handler that sends `pieces`, and what has become of it."""

    def __init__(self, pieces: list[bytes], length: int | None = None) -> None:
        self.pieces = pieces
        self.length = sum(map(len, pieces)) if length is None else length
        self.ended: BaseException | None = None
        self.done = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        response = v1_stream(self.length, "application/octet-stream")
        try:
            writer = await request.open_body(response)
            try:
                for piece in self._all():
                    await writer.send(asyncio.to_thread, lambda piece=piece: piece())
            finally:
                writer.close()
        except BaseException as error:
            self.ended = error
            raise
        finally:
            self.done.set()
        return response

    def _all(self) -> Iterator[Callable[[], bytes]]:
        for piece in self.pieces:
            yield lambda piece=piece: piece  # type: ignore[misc]


async def start(serve: Serve, handler: Any) -> Served:
    router = Router()
    router.add("GET", "/stream", handler)
    router.add("GET", "/ping", lambda _request: v1_text("OK"))
    served: Served = await serve(router, QUICK)
    return served


async def test_pieces_make_a_body_and_the_connection_lives_on(serve: Serve, way: str) -> None:
    pieces = [b"one", b"x" * 3_000_000, b"", b"two"]
    served = await start(serve, Streams(pieces))
    client = await served.client()
    client.send(get("/ping") + get("/stream") * 2 + get("/ping"))
    assert (await client.answer()).body == b"OK"
    for _ in range(2):
        assert (await client.answer()).body == b"".join(pieces)
    assert (await client.answer()).body == b"OK"


async def test_a_client_that_reads_slowly_gets_it_all(serve: Serve, way: str) -> None:
    whole = bytes(range(256)) * 40_000
    served = await start(serve, Streams([whole]))
    client = await served.client()
    client.send(get("/stream"))
    await client.head()
    got = b""
    while len(got) < len(whole):
        got += await client.reader.read(1 << 20)
        await asyncio.sleep(0.01)
    assert got == whole


async def test_a_client_that_does_not_read_is_given_up(serve: Serve, way: str) -> None:
    streams = Streams([b"x" * 10_000_000] * 3)
    served = await start(serve, streams)
    client = await served.client()
    client.writer.transport.pause_reading()
    client.send(get("/stream"))
    await asyncio.wait_for(streams.done.wait(), 20)
    assert isinstance(streams.ended, ConnectionLost)


async def test_a_client_that_goes_away_ends_the_stream(serve: Serve, way: str) -> None:
    streams = Streams([b"x" * 10_000_000] * 3)
    served = await start(serve, streams)
    client = await served.client()
    client.send(get("/stream"))
    await client.head()
    client.writer.transport.abort()
    await asyncio.wait_for(streams.done.wait(), 20)
    assert isinstance(streams.ended, ConnectionLost)


@pytest.mark.parametrize("error", [RuntimeError("bug"), HttpError(500, "TOO_LATE")])
async def test_a_body_that_fails_is_not_taken_for_whole(
    serve: Serve, way: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Streams):
        def _all(self) -> Iterator[Callable[[], bytes]]:
            yield lambda: b"some"
            raise error

    served = await start(serve, Fails([], length=100))
    client = await served.client()
    client.send(get("/stream") + get("/ping"))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await client.answer()


async def test_a_refusal_before_the_body_is_an_ordinary_answer(serve: Serve) -> None:
    async def refuse(request: Request) -> Response:
        await asyncio.sleep(0)
        raise HttpError(410, "GONE", {"first": 3})

    served = await start(serve, refuse)
    answer = await served.ask(get("/stream"))
    assert (answer.status, answer.body) == (410, b'{"message":"GONE","first":3}')


async def test_a_server_that_closes_ends_its_streams(serve: Serve, way: str) -> None:
    streams = Streams([b"x" * 10_000_000] * 3)
    served = await start(serve, streams)
    client = await served.client()
    client.send(get("/stream"))
    await client.head()
    served.server.close()
    await asyncio.wait_for(streams.done.wait(), 20)
    assert streams.ended is not None
