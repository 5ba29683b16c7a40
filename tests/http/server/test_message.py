"""Responses as they go over the wire."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from nsquark.errors import UsageError
from nsquark.http import (
    PendingResponse,
    Response,
    pack_json,
    plain_text,
    v1_empty,
    v1_error,
    v1_json,
    v1_text,
)
from nsquark.http.server.server import http_date


def test_json_is_compact_and_escaped_as_go_does() -> None:
    assert pack_json({"a": "<b> & ü", "c": [None, True, 1]}) == (
        '{"a":"\\u003cb\\u003e \\u0026 ü","c":[null,true,1]}'
    )


def test_a_lone_surrogate_is_still_json() -> None:
    assert v1_json("a\ud800").body == b'"a\\ud800"'


@pytest.mark.parametrize(
    ("response", "head", "body"),
    [
        (
            v1_text("OK"),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
            b"X-Nsq-Content-Type: nsq; version=1.0\r\nContent-Length: 2\r\n",
            b"OK",
        ),
        (
            v1_error(404, "NOT_FOUND"),
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json; charset=utf-8\r\n"
            b"X-Nsq-Content-Type: nsq; version=1.0\r\nContent-Length: 23\r\n",
            b'{"message":"NOT_FOUND"}',
        ),
        (
            v1_empty(),
            b"HTTP/1.1 200 OK\r\nX-Nsq-Content-Type: nsq; version=1.0\r\nContent-Length: 0\r\n",
            b"",
        ),
        (
            plain_text(500, "NOK - full"),
            b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain; charset=utf-8\r\n"
            b"Content-Length: 10\r\n",
            b"NOK - full",
        ),
    ],
)
def test_a_response_is_laid_out_when_made(response: Response, head: bytes, body: bytes) -> None:
    assert (response.head, response.body) == (head, body)


def test_a_response_is_resolved_once() -> None:
    pending = PendingResponse()
    pending.resolve(v1_empty())
    with pytest.raises(UsageError):
        pending.resolve(v1_empty())


def test_the_date_header_is_as_the_standard_library_writes_it() -> None:
    for moment in (0, 784111777, 951782400, 1700000000, 4102444799):
        assert http_date(moment).decode() == formatdate(moment, usegmt=True)
