"""Bytes to requests: the same, however they are cut; and what is refused, and when."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsquark.http import Limits, Router, v1_empty
from nsquark.http.server.reader import RequestReader
from tests.http.served import chunked, get, post

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")


def make_router() -> Router:
    router = Router()
    router.add("GET", "/ping", lambda _request: v1_empty())
    router.add("POST", "/pub", lambda _request: v1_empty(), max_body=10, too_big="MSG_TOO_BIG")
    router.add("POST", "/topic/create", lambda _request: v1_empty())
    return router


def reader(router: Router | None = None) -> RequestReader:
    return RequestReader(None, router or make_router(), Limits(max_head=500, max_headers=10))


# One that has seen many heads before.
EXPERIENCED = make_router()


def seen(parsed: RequestReader) -> list[object]:
    """Of each request what was understood, or the status with which it was refused."""
    return [
        (request.method, request.uri, request.body, request.keep_alive)
        if request.response is None
        else (request.response.status, request.response.body)
        for request in parsed.requests
    ]


MALFORMED = (400, b"400 Bad Request")
NO_ENCODING = (501, b"Unsupported transfer encoding")
MSG_TOO_BIG = (413, b'{"message":"MSG_TOO_BIG"}')
INTERNAL_ERROR = (500, b'{"message":"INTERNAL_ERROR"}')
PING = ("GET", b"/ping", b"", True)
LAST_PING = ("GET", b"/ping", b"", False)
CREATE = ("POST", b"/topic/create", b"", True)

TRANSCRIPTS = {
    "get": (get("/ping"), [PING]),
    "pipelined": (get("/ping") * 3, [PING] * 3),
    "empty lines between requests": (b"\r\n" + get("/ping") + b"\r\n" + get("/ping"), [PING] * 2),
    "body": (post("/pub?topic=a", b"0123456789"), [("POST", b"/pub?topic=a", b"0123456789", True)]),
    "no length": (get("/pub", method="POST"), [("POST", b"/pub", b"", True)]),
    "empty body": (post("/pub", b""), [("POST", b"/pub", b"", True)]),
    "chunked": (chunked("/pub", b"0123", b"4", b"56789"), [("POST", b"/pub", b"0123456789", True)]),
    "chunked, then another": (chunked("/pub", b"a") + get("/ping"), [("POST", b"/pub", b"a", True), PING]),
    "trailers": (
        chunked("/pub", b"a")[:-2] + b"Host: other\r\nX: y\r\n\r\n" + get("/ping"),
        [("POST", b"/pub", b"a", True), PING],
    ),
    "ignored body": (post("/topic/create", b"x" * 900) + get("/ping"), [CREATE, PING]),
    "ignored chunks": (chunked("/nothing", b"x" * 99), [("POST", b"/nothing", b"", True)]),
    "close": (get("/ping", "Connection: close"), [LAST_PING]),
    "nothing after close": (get("/ping", "connection: Close") + get("/ping"), [LAST_PING]),
    "1.0": (get("/ping", version="1.0"), [LAST_PING]),
    "1.0 without Host": (b"GET /ping HTTP/1.0\r\n\r\n", [LAST_PING]),
    "1.0 keep-alive": (get("/ping", "Connection: keep-alive", version="1.0") * 2, [PING] * 2),
    "h2c asked for": (get("/ping", *H2C) + get("/ping"), [PING] * 2),
    "h2c asked for with a body": (
        post("/pub", b"body", *H2C) + get("/ping"),
        [("POST", b"/pub", b"body", True), PING],
    ),
    "h2c asked for with chunks": (
        get("/pub", "Transfer-Encoding: chunked", *H2C, method="POST") + b"1\r\nb\r\n0\r\n\r\n",
        [("POST", b"/pub", b"b", True)],
    ),
    "h2c asked for and close": (get("/ping", "Connection: upgrade,close", "Upgrade: h2c"), [LAST_PING]),
    "too long": (post("/pub", b"x" * 11) + get("/ping"), [MSG_TOO_BIG]),
    "too long, not sent": (get("/pub", "Content-Length: 11", method="POST"), [MSG_TOO_BIG]),
    "too long in chunks": (chunked("/pub", b"0123456789", b"x") + get("/ping"), [MSG_TOO_BIG]),
    "far too long to ignore": (
        get("/topic/create", "Content-Length: 300000", method="POST"),
        [(413, b'{"message":"BODY_TOO_BIG"}')],
    ),
    "far too long, and lost": (
        get("/nothing", "Content-Length: 300000", method="POST"),
        [(404, b'{"message":"NOT_FOUND"}')],
    ),
    "garbage": (b"\x00\x01\x02", [MALFORMED]),
    "garbage behind a request": (get("/ping") + b"\x16\x03\x01", [PING, MALFORMED]),
    "no method": (b"/ping HTTP/1.1\r\n\r\n", [MALFORMED]),
    "a header without a colon": (get("/ping", "nothing here"), [MALFORMED]),
    "two lengths": (get("/pub", "Content-Length: 1", "content-length: 2", method="POST"), [MALFORMED]),
    "length and chunks": (
        get("/pub", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n",
        [MALFORMED],
    ),
    "an encoding that is not undone": (
        get("/pub", "Transfer-Encoding: gzip, chunked", method="POST") + b"1\r\nx\r\n0\r\n\r\n",
        [NO_ENCODING],
    ),
    "an encoding that nobody knows": (
        get("/pub", "Transfer-Encoding: xchunked", method="POST") + b"1\r\nx\r\n0\r\n\r\n",
        [NO_ENCODING],
    ),
    "chunked in capitals": (
        get("/pub", "Transfer-Encoding: Chunked ", method="POST") + b"1\r\nx\r\n0\r\n\r\n",
        [("POST", b"/pub", b"x", True)],
    ),
    "chunks in HTTP/1.0": (
        b"POST /pub HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        [MALFORMED],
    ),
    "a bad chunk": (get("/pub", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n", [INTERNAL_ERROR]),
    "a bad escape in the path": (get("/%zz"), [MALFORMED]),
    "CONNECT": (b"CONNECT nsqd:1 HTTP/1.1\r\nHost: nsqd\r\n\r\n", [MALFORMED]),
    "no Host": (b"GET /ping HTTP/1.1\r\n\r\n", [(400, b"400 Bad Request: missing required Host header")]),
    "HTTP/2": (
        b"GET /ping HTTP/2.0\r\nHost: nsqd\r\n\r\n",
        [(505, b"505 HTTP Version Not Supported: unsupported protocol version")],
    ),
    "Expect": (get("/pub", "Expect: 200-ok", method="POST"), [(417, b"417 Expectation Failed")]),
    "too many headers": (
        get("/ping", *(f"X-{i}: y" for i in range(10))),
        [(431, b"431 Request Header Fields Too Large")],
    ),
    "too long a header": (get("/ping", "X: " + "y" * 600), [(431, b"431 Request Header Fields Too Large")]),
    "an endless URL": (b"GET /" + b"x" * 600, [(431, b"431 Request Header Fields Too Large")]),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_fed_whole(name: str) -> None:
    data, expected = TRANSCRIPTS[name]
    parsed = reader()
    parsed.feed(data)
    assert seen(parsed) == expected


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_fed_byte_by_byte(name: str) -> None:
    data, expected = TRANSCRIPTS[name]
    parsed = reader()
    for at in range(len(data)):
        if parsed.done:
            break
        parsed.feed(data[at : at + 1])
    assert seen(parsed) == expected


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_that_is_known(name: str) -> None:
    data, expected = TRANSCRIPTS[name]
    router = make_router()
    for _ in range(3):
        parsed = reader(router)
        parsed.feed(data)
        assert seen(parsed) == expected


# After these the connection goes on.
HARMLESS = sorted(
    name
    for name, (_, expected) in TRANSCRIPTS.items()
    if all(len(request) == 4 and request[3] for request in expected)
)


# What has no end yet is not counted until the read after one that completed another request.
LAST = sorted(TRANSCRIPTS.keys() - {"an endless URL"})


@given(st.lists(st.sampled_from(HARMLESS)), st.sampled_from(LAST), st.data())
def test_transcripts_cut_anywhere(names: list[str], last: str, data: st.DataObject) -> None:
    transcripts = [TRANSCRIPTS[name] for name in [*names, last]]
    whole = b"".join(each for each, _ in transcripts)
    ends = set(accumulate(len(each) for each, _ in transcripts))
    cuts = data.draw(st.sets(st.integers(0, len(whole))) | st.sets(st.sampled_from(sorted(ends))))
    parsed = reader(EXPERIENCED)
    for start, end in pairwise(sorted(cuts | {0, len(whole)})):
        if parsed.done:
            break
        parsed.feed(whole[start:end])
    assert seen(parsed) == [request for _, expected in transcripts for request in expected]


@pytest.mark.parametrize(
    ("rest", "partial"), [(b"\r\n", False), (b"\r", False), (b"G", True), (b"GET /p", True)]
)
@pytest.mark.parametrize("apart", [True, False])
def test_a_request_begins_with_its_first_letter(rest: bytes, partial: bool, apart: bool) -> None:
    """An empty line behind a request, as some clients send it, is not the beginning of the next one."""
    parsed = reader()
    for data in (get("/ping"), rest) if apart else (get("/ping") + rest,):
        parsed.feed(data)
    assert parsed.partial is partial
    parsed.end()
    assert seen(parsed) == [PING, *([MALFORMED] if partial else [])]


@pytest.mark.parametrize("headers", [("User-Agent: me",), H2C])
def test_a_known_head_is_not_parsed_again(headers: tuple[str, ...]) -> None:
    router = make_router()
    data = post("/pub?topic=a", b"body", *headers)
    for _ in range(2):
        parsed = reader(router)
        parsed.feed(data)
    assert router.known_heads.keys() == {data[:-4]}
    parsed.feed(data * 100 + data[:-1])
    assert len(parsed.requests) == 101
    assert parsed.partial
    parsed.feed(data[-1:])
    assert seen(parsed) == [("POST", b"/pub?topic=a", b"body", True)] * 102


@pytest.mark.parametrize("times", [1, 2])
def test_headers_are_there_for_whoever_asks(times: int) -> None:
    router = make_router()
    for _ in range(times):  # the second time, the head is known
        parsed = reader(router)
        parsed.feed(get("/ping", "authorization: Bearer x", "X-Two: 1", "X-Two: 2", "Accept:  a, \xe4 "))
    (request,) = parsed.requests
    assert request.header("Authorization") == "Bearer x"
    assert request.header("ACCEPT") == "a, \xe4"
    assert request.header("X-Two") == "2"
    assert request.header("X-Three") is None


def test_trailers_are_no_headers() -> None:
    parsed = reader()
    parsed.feed(chunked("/pub", b"a")[:-2] + b"Authorization: x\r\n\r\n")
    (request,) = parsed.requests
    assert request.body == b"a"
    assert request.header("Authorization") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n" + get("/ping"),
        b"\r\n\r\n" + get("/ping"),
        get("/ping") + b"\r\n",
        get("/ping") * 2,
        chunked("/pub", b"a"),
        get("/ping", "Connection: keep-alive", version="1.0"),
        post("/pub", b"a", "Expect: 100-continue"),
        get("/ping", "X: " + "y" * 400) + get("/ping"),
    ],
)
def test_only_ordinary_heads_become_known(data: bytes) -> None:
    router = make_router()
    reader(router).feed(data)
    assert not router.known_heads


def test_known_heads_are_bounded_and_forgotten_with_the_routes() -> None:
    router = make_router()
    for number in range(5000):
        reader(router).feed(get(f"/ping?{number}"))
    assert 0 < len(router.known_heads) <= 4096
    router.add("GET", "/new", lambda _request: v1_empty())
    assert not router.known_heads


def test_connections_that_are_idle_keep_none_of_the_heads_that_were_known() -> None:
    """Each of many connections may have come at another time, when other heads were known."""
    router, idle = make_router(), []
    tracemalloc.start()
    try:
        for times in range(4):
            idle.append(reader(router))
            for _ in range(2):
                idle[-1].feed(get("/ping"))
            for number in range(4096):
                target = router.resolve(b"GET", b"/ping")
                router.remember(b"%d %d" % (times, number) + bytes(900), target, 0, {})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(parsed.requests) for parsed in idle] == [2] * 4
    assert held < 8_000_000


def test_a_head_that_is_not_known_is_not_kept() -> None:
    parsed = RequestReader(None, make_router(), Limits(max_head=200_000, max_headers=10))
    head = get("/ping", "X: " + "y" * 100_000)
    before = sys.getrefcount(head)
    parsed.feed(head)
    assert [request.method for request in parsed.requests] == ["GET"]
    assert sys.getrefcount(head) == before


def test_a_connection_that_repeats_its_head_sees_new_routes() -> None:
    router = make_router()
    parsed = reader(router)
    for _ in range(3):
        parsed.feed(get("/ping"))
    router.add("GET", "/ping", handler := lambda _request: v1_empty())
    parsed.feed(get("/ping"))
    assert [request.target.route.handler is handler for request in parsed.requests] == [False] * 3 + [True]


def test_heads_in_turn_are_told_apart() -> None:
    """Also when one begins as the other does, up to its end or to the length of its body."""
    router = make_router()
    requests = [post("/pub?topic=a", b"body"), post("/pub?topic=a", b"body", "X: 1"), get("/ping")]
    requests += [
        post("/pub?topic=ab", b"body"),
        post("/pub?topic=a", b"BODY"),
        post("/pub?topic=a", b"body2"),
    ]
    alone = {}
    for data in requests:
        parsed = reader(router)
        parsed.feed(data)
        (alone[data],) = seen(parsed)
    one, many = reader(router), reader(router)
    for data in requests * 2 + requests[::-1]:
        one.feed(data)
    many.feed(b"".join(requests * 2 + requests[::-1]))
    assert seen(one) == seen(many) == [alone[data] for data in requests * 2 + requests[::-1]]


@given(st.binary(max_size=300), st.booleans())
def test_nothing_makes_the_reader_raise(data: bytes, lead: bool) -> None:
    parsed = reader()
    parsed.feed(b"POST /pub HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" * lead + data)
    parsed.end()
    assert parsed.done


def test_many_wishes_for_another_protocol_in_one_read() -> None:
    parsed = reader()
    parsed.feed(get("/ping", *H2C) * 3000)
    assert seen(parsed) == [PING] * 3000


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (get("/ping"), [PING]),
        (b"GET /pi", [MALFORMED]),
        (post("/pub", b"body")[:-1], [INTERNAL_ERROR]),
        (chunked("/pub", b"body")[:-1], [INTERNAL_ERROR]),
        (post("/topic/create", b"body")[:-1], [MALFORMED]),
    ],
)
def test_what_the_end_cuts_short_is_refused(data: bytes, expected: list[object]) -> None:
    parsed = reader()
    if data:
        parsed.feed(data)
    parsed.end()
    assert seen(parsed) == expected
    assert parsed.done


def test_a_sender_that_waits_is_noticed_until_the_body_comes() -> None:
    parsed = reader()
    parsed.feed(get("/pub", "Content-Length: 4", "Expect: 100-Continue", method="POST"))
    assert parsed.continue_due
    assert parsed.partial
    parsed.feed(b"body")
    assert not parsed.continue_due
    assert seen(parsed) == [("POST", b"/pub", b"body", True)]


def test_a_sender_that_does_not_wait_is_not_asked_to_go_on() -> None:
    parsed = reader()
    parsed.feed(post("/pub", b"body", "Expect: 100-continue"))
    assert not parsed.continue_due


def test_http_1_0_is_not_asked_to_go_on() -> None:
    parsed = reader()
    parsed.feed(get("/pub", "Content-Length: 4", "Expect: 100-continue", method="POST", version="1.0"))
    assert not parsed.continue_due
    parsed.feed(b"body")
    assert seen(parsed) == [("POST", b"/pub", b"body", False)]


def test_tiny_chunks_are_not_kept_one_by_one() -> None:
    router = Router()
    router.add("POST", "/pub", lambda _request: v1_empty(), max_body=1000)
    parsed = RequestReader(None, router, Limits())
    parsed.feed(get("/pub", "Transfer-Encoding: chunked", method="POST"))
    for _ in range(3):
        parsed.feed(b"2\r\nab\r\n" * 100)
    assert len(parsed._body) == 3
    parsed.feed(b"0\r\n\r\n")
    assert parsed.requests[0].body == b"ab" * 300


def test_endless_trailers_are_refused() -> None:
    parsed = reader()
    parsed.feed(chunked("/pub", b"a")[:-2])
    for at in range(2000):
        if parsed.done:
            break
        parsed.feed(b"X-%d: y\r\n" % at)
    assert seen(parsed) == [MALFORMED]
