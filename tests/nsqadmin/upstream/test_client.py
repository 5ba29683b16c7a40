"""One client for all daemons, against servers that behave and misbehave."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsquark.errors import ConnectFailed, ConnectionLost
from nsquark.http.client.protocol import BadStatus
from nsquark.nsqadmin.upstream import Daemon, Upstream, nsqd, nsqlookupd
from tests.http.web import OK, Got, Web, answer
from tests.nsqadmin.served import free_address
from tests.security.certificates import Authority


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as web:
        yield web


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(connect_timeout=1.0, timeout=2.0)
    yield upstream
    upstream.close()


def at(web: Web) -> str:
    return web.url.partition("//")[2]


async def test_a_question_has_nsqs_headers_and_its_query(upstream: Upstream, web: Web) -> None:
    web.answers["/stats"] = answer(200, body=b'{"a":1}')
    told = await upstream.get_json(nsqd(at(web)), "/stats", {"topic": "e#ephemeral", "format": "json"})
    assert told == {"a": 1}
    [got] = web.got
    assert (got.method, got.target) == ("GET", "/stats?topic=e%23ephemeral&format=json")
    assert got.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert "authorization" not in got.headers


async def test_connections_are_kept(upstream: Upstream, web: Web) -> None:
    for _ in range(3):
        assert await upstream.ask(nsqd(at(web)), "GET", "/ping") == b"OK"
    assert web.connections == 1


async def test_what_must_not_be_done_twice_gets_a_connection_of_its_own(upstream: Upstream, web: Web) -> None:
    await upstream.ask(nsqd(at(web)), "GET", "/ping")
    web.answers["/pub"] = lambda _got, writer: writer.close()
    with pytest.raises(ConnectionLost):
        await upstream.ask(nsqd(at(web)), "POST", "/pub", body=b"x", once=True)
    assert [got.target for got in web.got] == ["/ping", "/pub"]


async def test_the_answer_of_an_nsqd_before_1_0_is_unwrapped(upstream: Upstream, web: Web) -> None:
    old = {"status_code": 200, "status_txt": "OK", "data": {"topics": []}}
    web.answers["/topics"] = answer(200, body=json.dumps(old).encode())
    assert await upstream.get_json(nsqlookupd(at(web)), "/topics") == {"topics": []}


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"[" * 100_000])
async def test_an_answer_that_is_no_json_is_an_error(upstream: Upstream, web: Web, body: bytes) -> None:
    web.answers["/stats"] = answer(200, body=body)
    with pytest.raises(ConnectionLost, match="/stats is no JSON"):
        await upstream.get_json(nsqd(at(web)), "/stats")


@pytest.mark.parametrize("status", [201, 204, 301, 404, 500, 799])
async def test_only_200_is_success(upstream: Upstream, web: Web, status: int) -> None:
    web.answers["/x"] = answer(status)
    with pytest.raises(BadStatus):
        await upstream.ask(nsqd(at(web)), "GET", "/x")


@pytest.mark.parametrize(
    "address", ["", "nowhere", ":1", "host:0", "host:99999", "a\r\nb:1", "[::1:1", "ü" * 80 + ":1"]
)
async def test_what_is_no_address_is_no_connection(upstream: Upstream, address: str) -> None:
    answers, [failure] = await upstream.each(
        [nsqd(address)], lambda daemon: upstream.ask(daemon, "GET", "/ping")
    )
    assert (answers, failure.address) == ([], address)


async def test_all_are_asked_at_once_and_each_failure_is_told(upstream: Upstream, web: Web) -> None:
    gate = asyncio.Event()

    async def wait(_got: Got, writer: asyncio.StreamWriter) -> None:
        if web.most_at_once == 2:
            gate.set()
        await gate.wait()
        writer.write(OK)

    web.answers["/ping"] = wait
    refused = free_address()
    daemons = [nsqd(at(web)), nsqd(refused), nsqlookupd(at(web))]
    answers, failures = await upstream.each(daemons, lambda daemon: upstream.ask(daemon, "GET", "/ping"))
    assert answers == [(daemons[0], b"OK"), (daemons[2], b"OK")]
    assert [(failure.kind, failure.address, failure.status) for failure in failures] == [("nsqd", refused, 0)]


async def test_a_failure_tells_status_body_and_code(upstream: Upstream, web: Web) -> None:
    web.answers["/x"] = answer(404, body=b'{"message":"CHANNEL_NOT_FOUND"}')
    _, [failure] = await upstream.each([nsqd(at(web))], lambda daemon: upstream.ask(daemon, "POST", "/x"))
    assert (failure.status, failure.code) == (404, "CHANNEL_NOT_FOUND")
    assert (
        str(failure) == f'{at(web)}: got response 404 Not Found "{{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}}"'
    )


async def test_a_daemon_that_never_ends_its_answer_is_given_up() -> None:
    upstream = Upstream(connect_timeout=1.0, timeout=0.2)
    async with Web() as web:
        web.answers["/stats"] = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
        with pytest.raises(ConnectionLost):
            await upstream.get_json(nsqd(at(web)), "/stats")
    upstream.close()


# ---- a handful of daemons at once


async def test_a_handful_is_asked_over_kept_connections_and_over_new_ones(web: Web) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b'{"topics":[]}')
    refused = free_address()
    for _ in range(2):  # without kept connections, and with one
        answers, failures = await upstream.get_json_of([nsqd(at(web)), nsqd(refused)], "/stats")
        assert answers == [(nsqd(at(web)), {"topics": []})]
        assert [failure.address for failure in failures] == [refused]
    upstream.close()


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_failure(web: Web) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b"{}")
    await upstream.get_json_of([nsqd(at(web))], "/stats")

    def close(_got: Got, writer: asyncio.StreamWriter) -> None:
        web.answers["/stats"] = answer(200, body=b"{}")
        writer.close()

    web.answers["/stats"] = close
    answers, failures = await upstream.get_json_of([nsqd(at(web))], "/stats")
    assert (answers, failures) == ([(nsqd(at(web)), {})], [])
    upstream.close()


@pytest.mark.parametrize(
    ("reply", "status"), [(answer(500, body=b"oops"), 500), (answer(200, body=b"no JSON"), 0)]
)
async def test_what_is_no_answer_over_a_kept_connection_is_a_failure(
    web: Web, reply: bytes, status: int
) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b"{}")
    await upstream.get_json_of([nsqd(at(web))], "/stats")
    web.answers["/stats"] = reply
    answers, [failure] = await upstream.get_json_of([nsqd(at(web))], "/stats")
    assert (answers, failure.status) == ([], status)
    upstream.close()


async def test_a_question_that_was_begun_is_not_sent_again(web: Web) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b"{}")
    daemon, stranger = nsqd(at(web)), nsqd(free_address())
    assert upstream.begin([daemon], "/stats") == {}  # no connection is kept yet
    await upstream.get_json_of([daemon], "/stats")
    begun = upstream.begin([daemon, stranger], "/stats")
    assert list(begun) == [daemon]
    assert await upstream.get_json_of([daemon], "/stats", begun) == ([(daemon, {})], [])
    assert (begun, len(web.got)) == ({}, 2)
    upstream.close()


async def test_a_question_that_was_begun_and_is_given_up_costs_its_connection_alone(web: Web) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b"{}")
    daemon = nsqd(at(web))
    await upstream.get_json_of([daemon], "/stats")
    [request] = upstream.begin([daemon], "/stats").values()
    request.give_up()
    assert await upstream.get_json_of([daemon], "/stats") == ([(daemon, {})], [])
    assert web.connections == 2
    upstream.close()


async def test_a_reader_who_goes_leaves_no_request_behind(web: Web) -> None:
    upstream = Upstream()
    web.answers["/stats"] = answer(200, body=b"{}")
    await upstream.get_json_of([nsqd(at(web))], "/stats")
    begun = asyncio.Event()

    async def wait(_got: Got, _writer: asyncio.StreamWriter) -> None:
        begun.set()
        await asyncio.Event().wait()

    web.answers["/stats"] = wait
    asked = asyncio.ensure_future(upstream.get_json_of([nsqd(at(web)), nsqlookupd(at(web))], "/stats"))
    await begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    web.answers["/stats"] = answer(200, body=b"{}")
    assert (await upstream.get_json_of([nsqd(at(web))], "/stats"))[1] == []
    upstream.close()


# ---- TLS and the secret


class Secured:
    """A plain port that sends every client to an https port."""

    def __init__(self, plain: Web, secure: Web, authority: Authority) -> None:
        self.plain = plain
        self.secure = secure
        self.authority = authority
        port = int(secure.url.rpartition(":")[2])
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
        plain.answers = dict.fromkeys(("/ping", "/stats"), answer(403, body=body))
        secure.answers["/stats"] = answer(200, body=b"{}")

    @property
    def daemon(self) -> Daemon:
        return nsqd(f"localhost:{at(self.plain).rpartition(':')[2]}")

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))


@pytest.fixture
async def secured(tmp_path: Path, web: Web) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with Web(tls) as secure:
        yield Secured(web, secure, authority)


async def test_an_nsqd_that_requires_tls_is_asked_over_https_and_then_at_once(secured: Secured) -> None:
    upstream = Upstream(tls=secured.context())
    for _ in range(3):
        assert await upstream.get_json(secured.daemon, "/stats", {"format": "json"}) == {}
    assert [got.target for got in secured.secure.got] == ["/stats?format=json"] * 3
    assert len(secured.plain.got) == 1
    upstream.close()


async def test_a_certificate_of_another_authority_is_refused(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    upstream = Upstream(tls=ssl.create_default_context(cafile=str(other.file)))
    with pytest.raises(ConnectFailed, match="certificate"):
        await upstream.get_json(secured.daemon, "/stats")
    upstream.close()


async def test_the_secret_does_not_travel_in_the_clear_to_an_nsqd_that_requires_tls(secured: Secured) -> None:
    upstream = Upstream(tls=secured.context(), secret="open sesame")
    await upstream.get_json(secured.daemon, "/stats")
    assert [got.headers.get("authorization") for got in secured.plain.got] == [None]
    assert [got.headers.get("authorization") for got in secured.secure.got] == ["Bearer open sesame"]
    upstream.close()


async def test_the_secret_is_for_nsqds_and_not_for_nsqlookupds(web: Web) -> None:
    upstream = Upstream(secret="open sesame")
    await upstream.ask(nsqlookupd(at(web)), "GET", "/topics")
    await upstream.ask(nsqd(at(web)), "GET", "/info")
    await upstream.ask(nsqd(at(web)), "GET", "/info")
    assert [(got.target, got.headers.get("authorization")) for got in web.got] == [
        ("/topics", None),
        ("/ping", None),
        ("/info", "Bearer open sesame"),
        ("/info", "Bearer open sesame"),
    ]
    upstream.close()


async def test_an_https_address_sends_nothing_in_the_clear(secured: Secured) -> None:
    upstream = Upstream(tls=secured.context(), secret="open sesame")
    address = f"https://localhost:{at(secured.secure).rpartition(':')[2]}"
    for daemon in (nsqlookupd(address), nsqd(address)):
        assert await upstream.get_json(daemon, "/stats") == {}
    assert [got.headers.get("authorization") for got in secured.secure.got] == [None, "Bearer open sesame"]
    assert secured.plain.got == []
    upstream.close()


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"https_port":0}', b'{"https_port":"1"}', b'{"https_port":70000}', b"[]"]
)
async def test_another_403_is_an_error(upstream: Upstream, web: Web, body: bytes) -> None:
    web.answers["/stats"] = answer(403, body=body)
    with pytest.raises(BadStatus):
        await upstream.get_json(nsqd(at(web)), "/stats")
