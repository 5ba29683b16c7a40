"""The rules of the HTTP client, without a socket."""

from __future__ import annotations

import pytest

from nsquark.errors import ConnectionLost, UsageError
from nsquark.http.client.protocol import (
    BadStatus,
    NotJson,
    ResponseParser,
    https_url,
    nsq_headers,
    pack_request,
    parse_json,
    parse_url,
    port_of,
    tls_context,
)

ACCEPT = "application/vnd.nsq; version=1.0"


@pytest.mark.parametrize(
    ("url", "port"), [("http://a", 80), ("https://a", 443), ("http://a:4151/x", 4151), ("https://[::1]:2", 2)]
)
def test_a_url_has_a_port(url: str, port: int) -> None:
    assert port_of(parse_url(url)) == port


@pytest.mark.parametrize("url", ["ftp://a/", "a:1", "http://", "http:///x", "x?secret=1"])
def test_a_wrong_url_is_refused_without_its_query(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_only_https_has_a_context() -> None:
    assert tls_context(parse_url("http://a"), None) is None
    assert tls_context(parse_url("https://a"), None) is not None


def test_a_request_has_the_secret_as_a_bearer_token() -> None:
    assert nsq_headers() == {"Accept": ACCEPT}
    assert nsq_headers("s") == {"Accept": ACCEPT, "Authorization": "Bearer s"}


def test_requests() -> None:
    parts = parse_url("http://user:word@a:1/b?c=d")
    head = b"GET /b?c=d HTTP/1.1\r\nHost: a:1\r\n"
    assert pack_request("GET", parts, b"", {}) == head + b"Connection: close\r\n\r\n"
    assert pack_request("GET", parts, b"", {"X": "y"}, keep_alive=True) == head + b"X: y\r\n\r\n"
    post = pack_request("POST", parse_url("http://a"), b"hi", {}, keep_alive=True)
    assert post == b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"


def test_a_header_cannot_bring_another() -> None:
    with pytest.raises(UsageError, match="line break"):
        pack_request("GET", parse_url("http://a"), b"", {"Authorization": "x\r\nHost: y"})


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi", False),
        (
            b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
            False,
        ),
        (b"HTTP/1.0 200 OK\r\nX-A: b\r\n\r\nhi", True),
    ],
)
def test_an_answer_is_parsed_in_pieces(answer: bytes, ends: bool, size: int) -> None:
    parser = ResponseParser("http://a")
    for start in range(0, len(answer), size):
        assert not parser.complete
        parser.feed(answer[start : start + size])
    assert parser.complete is not ends
    if ends:
        parser.feed(b"")
    response = parser.response()
    assert (response.status, response.body, response.headers["x-a"]) == (200, b"hi", "b")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
        b"this is not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Noise: 1\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
    ],
)
def test_an_answer_that_is_cut_wrong_or_too_long_is_none(answer: bytes) -> None:
    parser = ResponseParser("http://a", max_body=100)
    with pytest.raises(ConnectionLost):
        list(map(parser.feed, (answer, b"")))


@pytest.mark.parametrize("size", [1, 1000])
def test_what_a_server_says_before_its_answer_is_not_the_answer(size: int) -> None:
    early = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n" * 2
    whole = early + b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    parser = ResponseParser("http://a")
    for start in range(0, len(whole), size):
        parser.feed(whole[start : start + size])
    response = parser.response()
    assert (response.status, response.headers, response.body) == (404, {"content-length": "2"}, b"no")


@pytest.mark.parametrize(
    "more", [b"\0\1\2", b"HTTP/1.1 500 Oops\r\nX-A: c\r\nContent-Length: 1\r\n\r\nx", b"\r\n"]
)
def test_what_follows_an_answer_does_not_change_it(more: bytes) -> None:
    parser = ResponseParser("http://a")
    parser.feed(b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi" + more)
    parser.feed(more)
    response = parser.response()
    assert (response.status, response.headers["x-a"], response.body) == (200, "b", b"hi")


def test_a_head_is_not_too_long_because_its_body_came_with_it() -> None:
    parser = ResponseParser("http://a")
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000))
    assert len(parser.response().body) == 100_000


def test_an_upgrade_is_no_answer() -> None:
    parser = ResponseParser("http://a")
    with pytest.raises(ConnectionLost, match="upgrade"):
        parser.feed(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nx")


def test_a_bad_status_says_what_the_daemon_said() -> None:
    error = BadStatus("http://a/x", 404, b'{"message":"TOPIC_NOT_FOUND","n":1}')
    assert (error.status, error.message, error.details["n"]) == (404, "TOPIC_NOT_FOUND", 1)
    assert str(BadStatus("http://a/x", 500, b"oops\n")) == "http://a/x: 500 oops"
    assert BadStatus("http://a/x", 500, b"[1]").details == {}
    assert BadStatus("http://a/x", 500, b"[" * 100_000).details == {}


def test_what_is_no_json_is_refused_without_the_query() -> None:
    assert parse_json("http://a/x", b'{"a": 1}') == {"a": 1}
    with pytest.raises(NotJson, match=r"^http://a/x: the answer is no JSON$"):
        parse_json("http://a/x?secret=1", b"oops")
    with pytest.raises(NotJson):
        parse_json("http://a/x", b"[" * 100_000)


@pytest.mark.parametrize(
    ("url", "status", "details", "instead"),
    [
        ("http://a:1", 403, {"https_port": 2}, "https://a:2"),
        ("http://a:1/b?c=d", 403, {"https_port": 2}, "https://a:2/b?c=d"),
        ("http://[::1]:1", 403, {"https_port": 2}, "https://[::1]:2"),
        ("https://a:1", 403, {"https_port": 2}, ""),
        ("http://a:1", 401, {"https_port": 2}, ""),
        ("http://a:1", 403, {}, ""),
        ("http://a:1", 403, {"https_port": "2"}, ""),
        ("http://a:1", 403, {"https_port": True}, ""),
        ("http://a:1", 403, {"https_port": 0}, ""),
        ("http://a:1", 403, {"https_port": 65536}, ""),
    ],
)
def test_a_daemon_that_requires_tls_says_where_it_has_https(
    url: str, status: int, details: dict[str, object], instead: str
) -> None:
    assert https_url(url, status, details) == instead
