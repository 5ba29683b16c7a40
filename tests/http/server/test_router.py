"""Which request gets which answer, and what is said when there is none."""

from __future__ import annotations

import pytest

from nsquark.http import HttpError, Request, Response, Router, v1_empty, v1_text


def router() -> Router:
    table = Router()
    for method, path in [("GET", "/ping"), ("POST", "/topic/create"), ("GET", "/config/<opt>")]:
        table.add(method, path, lambda request: v1_text(f"{request.path} {request.argument}"))
    table.add("PUT", "/config/<opt>", lambda request: v1_text("put " + request.argument))
    return table


def ask(table: Router, method: str, uri: str) -> Response:
    target = table.resolve(method.encode(), uri.encode("latin-1"))
    answer = target.route.handler(Request(None, target))
    assert isinstance(answer, Response)
    return answer


@pytest.mark.parametrize("uri", ["/ping", "/ping?x=1", "/p%69ng", "http://nsqd:4151/ping?x", "/ping?%zz"])
def test_a_known_path_is_found(uri: str) -> None:
    assert ask(router(), "GET", uri).body == b"/ping "


def test_the_last_segment_may_be_an_argument() -> None:
    assert ask(router(), "GET", "/config/log_level").body == b"/config/log_level log_level"
    assert ask(router(), "PUT", "/config/log%5Flevel?x=y").body == b"put log_level"


@pytest.mark.parametrize(
    "uri", ["/", "/nothing", "/config", "/config/", "/config/a/b", "/pin", "/ping#a", "/put"]
)
def test_an_unknown_path_is_not_found(uri: str) -> None:
    answer = ask(router(), "GET", uri)
    assert (answer.status, answer.body) == (404, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    ("method", "uri", "allow"),
    [
        ("POST", "/ping", b"GET, OPTIONS"),
        ("HEAD", "/ping", b"GET, OPTIONS"),
        ("GET", "/topic/create?topic=x", b"OPTIONS, POST"),
        ("POST", "/config/x", b"GET, OPTIONS, PUT"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, uri: str, allow: bytes) -> None:
    answer = ask(router(), method, uri)
    assert (answer.status, answer.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert b"\r\nAllow: " + allow + b"\r\n" in answer.head


def test_options_are_told_for_every_known_path() -> None:
    answer = ask(router(), "OPTIONS", "/config/x")
    assert (answer.status, answer.body) == (200, b"")
    assert b"\r\nAllow: GET, OPTIONS, PUT\r\n" in answer.head
    assert b"Nsq" not in answer.head
    assert b"\r\nAllow: GET, OPTIONS, POST, PUT\r\n" in ask(router(), "OPTIONS", "*").head
    assert ask(router(), "OPTIONS", "/nothing").status == 404


@pytest.mark.parametrize(
    ("method", "uri", "status", "location"),
    [
        ("GET", "/ping/", 301, b"/ping"),
        ("GET", "/PING?a=%20b", 301, b"/ping?a=%20b"),
        ("GET", "///x/..//ping", 301, b"/ping"),
        ("POST", "/topic//create/?topic=x", 307, b"/topic/create?topic=x"),
        ("GET", "/Config/Log_Level/", 301, b"/config/Log_Level"),
        ("GET", "/config/a%23b/", 301, b"/config/a%23b"),
    ],
)
def test_a_path_nearly_right_is_redirected(method: str, uri: str, status: int, location: bytes) -> None:
    answer = ask(router(), method, uri)
    assert answer.status == status
    assert b"\r\nLocation: " + location + b"\r\n" in answer.head


def test_a_redirected_get_is_told_in_html_too() -> None:
    answer = ask(router(), "GET", "/PING?a='&b=%22")
    assert answer.body == b'<a href="/ping?a=&#39;&amp;b=%22">Moved Permanently</a>.\n\n'
    assert b"\r\nContent-Type: text/html; charset=utf-8\r\n" in answer.head
    assert ask(router(), "POST", "/topic//create/").body == b""


def test_no_redirect_to_a_path_that_has_not_the_method() -> None:
    assert ask(router(), "POST", "/PING").status == 404


@pytest.mark.parametrize("uri", ["/%zz", "ping", "*", "ftp:/ping"])
def test_a_target_that_is_no_path_is_a_bad_request(uri: str) -> None:
    assert ask(router(), "GET", uri).status == 400


def test_a_query_that_go_does_not_parse_is_an_error_to_whoever_asks() -> None:
    table = Router()
    table.add("GET", "/ping", lambda request: v1_text(request.query.get("a", "none")))
    assert ask(table, "GET", "/ping?a=1&a=2").body == b"1"
    with pytest.raises(HttpError) as raised:
        ask(table, "GET", "/ping?a=1;b=2")
    assert raised.value.response.body == b'{"message":"INVALID_REQUEST"}'


def test_a_route_added_later_is_found() -> None:
    table = router()
    assert ask(table, "GET", "/late").status == 404
    table.add("GET", "/late", lambda _request: v1_empty())
    assert ask(table, "GET", "/late").status == 200
