"""Requests over kept connections: reuse, a connection that the daemon has closed, and refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from nsquark.spark.errors import BadResponse, RequestRefused, Unreachable
from nsquark.spark.http import Access, Exchange, Request, fetch_json


class Server(ThreadingHTTPServer):
    daemon_threads = True
    connections = 0
    closes = False  # after each response, without saying so

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: ClassVar = {
        "/json": (200, b'{"answer": 42}'),
        "/empty": (200, b""),
        "/text": (200, b"OK"),
        "/refused": (409, b'{"message": "IN_USE", "owner": "me"}'),
        "/plain": (500, b"broken\n"),
    }

    def do_GET(self) -> None:
        status, body = self.answers[self.path.partition("?")[0]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        assert isinstance(self.server, Server)
        self.close_connection = self.server.closes

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def base(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


ACCESS = Access(timeout=20.0)


def test_a_connection_is_kept_for_the_next_request(server: Server, base: str) -> None:
    for _ in range(3):
        assert fetch_json(base, ACCESS, "/json", {"x": "a b"}) == {"answer": 42}
    assert fetch_json(base, ACCESS, "/empty") is None
    assert server.connections == 1


def test_a_kept_connection_that_the_daemon_has_closed_is_replaced(server: Server, base: str) -> None:
    server.closes = True
    for number in range(1, 4):
        assert fetch_json(base, ACCESS, "/json") == {"answer": 42}
        assert server.connections == number


def test_a_response_that_is_not_read_to_its_end_closes_the_connection(server: Server, base: str) -> None:
    with Exchange(base, ACCESS) as exchange:
        exchange.send(Request("/json"))
        exchange.response()
    fetch_json(base, ACCESS, "/json")
    assert server.connections == 2


def test_a_refusal_has_its_status_message_and_details(base: str) -> None:
    with pytest.raises(RequestRefused, match=f"{base}/refused: 409 IN_USE") as caught:
        fetch_json(base, ACCESS, "/refused", {"secret": "hidden"})
    assert caught.value.details["owner"] == "me"
    with pytest.raises(RequestRefused, match=f"{base}/plain: 500 broken"):
        fetch_json(base, ACCESS, "/plain")


def test_a_body_that_is_no_json_is_told(base: str) -> None:
    with pytest.raises(BadResponse, match=f"{base}/text: the answer is no JSON"):
        fetch_json(base, ACCESS, "/text")


def test_an_aborted_exchange_fails(base: str) -> None:
    with Exchange(base, ACCESS) as exchange:
        exchange.fetch_json(Request("/json"))
        exchange.abort()
        with pytest.raises(Unreachable):
            exchange.fetch_json(Request("/json"))


def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        fetch_json("http://127.0.0.1:1", ACCESS, "/json")


def test_the_secret_is_in_no_text() -> None:
    assert "opensesame" not in repr(Access(secret="opensesame"))
