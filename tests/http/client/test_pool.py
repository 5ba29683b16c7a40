"""Requests over connections that are kept, against a real server that behaves and misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from nsquark.errors import ConnectFailed, ConnectionLost
from nsquark.http.client.connection import Reply
from nsquark.http.client.pool import ClientPool, ClientRequest, origin_of, quote_url
from tests.daemon import until
from tests.http.web import OK, Got, Web, answer


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


@pytest.fixture
async def pool() -> AsyncIterator[ClientPool]:
    pool = ClientPool(connect_timeout=2.0, timeout=5.0, keep=2, max_body=1_000_000)
    yield pool
    pool.close()


async def post(pool: ClientPool, url: str, body: bytes = b"body", within: float = 5.0) -> Reply:
    request = ClientRequest("POST", urlsplit(url), {}, body)
    deadline = asyncio.get_running_loop().time() + within
    reply = await pool.send(request.origin, request.pack(), deadline)
    return await pool.follow(request, reply, deadline)


async def test_one_connection_serves_one_request_after_the_other(pool: ClientPool, web: Web) -> None:
    for number in range(5):
        assert (await post(pool, web.url, b"%d" % number)).status == 200
    assert web.connections == 1
    assert [got.body for got in web.got] == [b"0", b"1", b"2", b"3", b"4"]


async def test_no_more_connections_are_kept_than_asked_for(pool: ClientPool, web: Web) -> None:
    gate = asyncio.Event()

    async def wait(got: Got, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(OK)

    web.answers["/wait"] = wait
    posts = [asyncio.create_task(post(pool, f"{web.url}/wait")) for _ in range(4)]
    await until(lambda: web.most_at_once == 4)
    gate.set()
    await asyncio.gather(*posts)
    await asyncio.gather(*(post(pool, web.url) for _ in range(4)))
    assert web.connections == 6  # two were kept


async def test_the_connection_that_was_idle_longest_makes_room(pool: ClientPool) -> None:
    async with Web() as first, Web() as second, Web() as third:
        for web in (first, second, third, second, third, first):
            await post(pool, web.url)
        assert (first.connections, second.connections, third.connections) == (2, 1, 1)


async def test_a_kept_connection_that_was_closed_is_replaced(pool: ClientPool, web: Web) -> None:
    def last_words(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    web.answers["/once"] = last_words
    for _ in range(3):
        assert (await post(pool, f"{web.url}/once")).status == 200
    assert web.connections == 3


async def test_a_server_that_says_close_is_taken_at_its_word(pool: ClientPool, web: Web) -> None:
    web.answers["/close"] = answer(200, "Connection: close")
    await post(pool, f"{web.url}/close")
    await post(pool, f"{web.url}/close")
    assert web.connections == 2


async def test_a_new_connection_without_an_answer_is_no_reason_to_try_again(
    pool: ClientPool, web: Web
) -> None:
    web.answers["/"] = lambda got, writer: writer.transport.abort()
    with pytest.raises(ConnectionLost):
        await post(pool, web.url + "/")
    assert web.connections == 1


async def test_an_answer_before_the_request_was_read_ends_the_connection(pool: ClientPool) -> None:
    connections = 0
    closed = asyncio.Event()

    async def impatient(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(413))
        await closed.wait()
        writer.close()

    server = await asyncio.start_server(impatient, "127.0.0.1", 0, limit=1000)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    for _ in range(2):
        assert (await post(pool, url, b"x" * 50_000_000)).status == 413
    assert connections == 2
    closed.set()
    server.close()


async def test_two_answers_to_one_request_are_not_taken_for_the_next(pool: ClientPool, web: Web) -> None:
    web.answers["/twice"] = OK + answer(500)
    assert (await post(pool, f"{web.url}/twice")).status == 200
    assert (await post(pool, f"{web.url}/")).status == 200
    assert web.connections == 2


async def test_a_body_within_the_bound_is_dropped_and_a_larger_one_refused(
    pool: ClientPool, web: Web
) -> None:
    web.answers["/large"] = answer(200, body=b"x" * 1_000_000)
    web.answers["/larger"] = answer(200, body=b"x" * 1_000_001)
    assert (await post(pool, f"{web.url}/large")).status == 200
    with pytest.raises(ConnectionLost, match="more than 1000000 bytes"):
        await post(pool, f"{web.url}/larger")


async def test_a_head_without_end_is_refused(pool: ClientPool, web: Web) -> None:
    web.answers["/"] = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000
    with pytest.raises(ConnectionLost, match="a head of more than 65536 bytes"):
        await post(pool, f"{web.url}/")


async def test_redirects_share_the_time_of_the_request(pool: ClientPool, web: Web) -> None:
    async def slowly(got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.write(answer(307, "Location: /again"))

    web.answers["/again"] = slowly
    with pytest.raises(ConnectionLost, match="in time"):
        await post(pool, f"{web.url}/again", within=0.35)
    assert 2 <= len(web.got) <= 4


async def test_a_request_that_is_cancelled_leaves_no_connection_behind(pool: ClientPool, web: Web) -> None:
    async def silence(got: Got, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    web.answers["/silence"] = silence
    task = asyncio.create_task(post(pool, f"{web.url}/silence"))
    await until(lambda: web.most_at_once == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await post(pool, f"{web.url}/")).status == 200
    assert web.connections == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://no.such.host.invalid/", "http://a..b/"])
async def test_no_connection_is_an_error_that_says_so(pool: ClientPool, url: str) -> None:
    with pytest.raises(ConnectFailed):
        await post(pool, url)


def test_a_url_is_escaped_where_it_must_be_and_nowhere_else() -> None:
    assert quote_url("http://h/a b/%41?x=é&y=[1]#z") == "http://h/a%20b/%41?x=%C3%A9&y=[1]#z"
    assert origin_of(urlsplit("https://[::1]/")) == ("https", "::1", 443)


# ---- bodies


async def test_bodies_are_kept_on_demand_and_each_is_that_of_its_request(web: Web) -> None:
    pool = ClientPool(connect_timeout=2.0, timeout=5.0, keep=2, max_body=1_000_000, keep_bodies=True)
    web.answers["/long"] = answer(200, body=b"x" * 900_000)
    web.answers["/empty"] = answer(200)
    web.answers["/pieces"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    web.answers["/continued"] = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, body=b"after")
    for path, body in (
        ("/long", b"x" * 900_000),
        ("/empty", b""),
        ("/pieces", b"abc"),
        ("/continued", b"after"),
        ("/", b"OK"),
    ):
        assert (await post(pool, web.url + path)).body == body
    assert web.connections == 1
    pool.close()


async def test_a_body_is_dropped_unless_it_is_wanted(pool: ClientPool, web: Web) -> None:
    assert (await post(pool, web.url)).body == b""


async def test_a_kept_body_has_a_bound(web: Web) -> None:
    pool = ClientPool(connect_timeout=2.0, timeout=5.0, keep=2, max_body=1000, keep_bodies=True)
    web.answers["/"] = answer(200, body=b"x" * 1001)
    with pytest.raises(ConnectionLost, match="more than 1000 bytes"):
        await post(pool, web.url + "/")
    pool.close()


async def test_a_request_that_is_sent_once_gets_a_connection_of_its_own(pool: ClientPool, web: Web) -> None:
    request = ClientRequest("POST", urlsplit(web.url), {}, b"body")
    for _ in range(2):
        await pool.send(request.origin, request.pack(), pool.deadline(), once=True)
    assert web.connections == 2
