"""The blocking transport: connections that are kept, lost, aborted, and answers that break off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from nsquark.errors import ConnectFailed, ConnectionLost
from nsquark.http.client.blocking import Access, BlockingExchange, BlockingPipeline
from nsquark.http.client.protocol import BadStatus

ACCESS = Access(timeout=20.0, secret="s")
HI = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


class Server:
    """Answers the requests of each connection with the next answers; then it closes the connection.

    An answer stands for `together` requests, which the server reads first.
    """

    def __init__(self, connections: list[list[bytes]], together: int = 1) -> None:
        self._together = together
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections = connections
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answers in self._connections:
            connection, _ = self._listener.accept()
            with connection:
                for answer in answers:
                    data = b""
                    while data.count(b"\r\n\r\n") < self._together:
                        data += connection.recv(65536)
                    self.requests.append(data)
                    connection.sendall(answer)
        self._listener.close()

    def stop(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def serving(*connections: list[bytes], together: int = 1) -> Iterator[Server]:
    server = Server(list(connections), together)
    yield server
    server.stop()


def get(url: str, access: Access = ACCESS) -> bytes:
    with closing(BlockingExchange(url, access)) as exchange:
        exchange.send("GET", "/x?y=z")
        return exchange.read(exchange.response())


def test_a_connection_is_kept_and_used_again() -> None:
    with serving([HI, HI, HI]) as server:
        assert [get(server.url) for _ in range(3)] == [b"hi"] * 3
    lines = server.requests[0].decode().split("\r\n")
    assert lines[0] == "GET /x?y=z HTTP/1.1"
    assert "Authorization: Bearer s" in lines
    assert "Connection: close" not in lines


def test_another_access_has_another_connection() -> None:
    with serving([HI], [HI]) as server:
        assert get(server.url) == b"hi"
        assert get(server.url, Access(timeout=20.0)) == b"hi"


def test_a_kept_connection_that_the_daemon_has_closed_is_replaced() -> None:
    with serving([HI], [HI]) as server:
        assert [get(server.url) for _ in range(2)] == [b"hi"] * 2


def test_a_daemon_may_close_the_connection_after_its_answer() -> None:
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi"
    with serving([last], [last], [HI]) as server:
        assert [get(server.url), get(server.url)] == [b"hi"] * 2
        with closing(BlockingExchange(server.url, ACCESS)) as exchange:
            exchange.send("GET", "/")
            assert exchange.read(exchange.response()) == b"hi"


def test_an_answer_is_read_into_a_buffer() -> None:
    with serving([HI, HI]) as server:
        with closing(BlockingExchange(server.url, ACCESS)) as exchange:
            exchange.send("GET", "/")
            response = exchange.response()
            buffer = bytearray(2)
            exchange.read_into(response, memoryview(buffer)[:1])
            exchange.read_into(response, memoryview(buffer)[1:])
            assert buffer == b"hi"
            with pytest.raises(ConnectionLost, match="broke off"):
                exchange.read_into(response, memoryview(buffer))
            assert exchange.read(response) == b""
        assert get(server.url) == b"hi"  # over the same connection


def test_a_connection_with_an_answer_half_read_is_closed() -> None:
    with serving([HI], [HI]) as server:
        with closing(BlockingExchange(server.url, ACCESS)) as exchange:
            exchange.send("GET", "/")
            exchange.response()
        assert get(server.url) == b"hi"


def test_the_rest_of_an_answer_is_not_taken_for_the_next_one() -> None:
    with serving([HI], [HI]) as server, closing(BlockingExchange(server.url, ACCESS)) as exchange:
        for _ in range(2):
            exchange.send("GET", "/")
            response = exchange.response()
        assert exchange.read(response) == b"hi"
    assert len(server.requests) == 2


def test_what_the_daemon_refuses_is_told() -> None:
    body = b'{"message": "TOPIC_NOT_FOUND"}'
    with serving([b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body]) as server:
        with closing(BlockingExchange(server.url, ACCESS)) as exchange:
            exchange.send("POST", "/topic/empty?topic=t", body=b"x")
            error = exchange.bad_status("/topic/empty?topic=t", exchange.response())
        assert (error.status, error.message) == (404, "TOPIC_NOT_FOUND")
        assert error.url == f"{server.url}/topic/empty"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
    ],
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    with serving([answer]) as server, pytest.raises(ConnectionLost, match="broke off"):
        get(server.url)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 101,
    ],
)
def test_an_answer_has_a_limit(answer: bytes) -> None:
    with serving([answer]) as server, closing(BlockingExchange(server.url, ACCESS)) as exchange:
        exchange.send("GET", "/")
        with pytest.raises(ConnectionLost, match="more than 100 bytes"):
            exchange.read(exchange.response(), max_body=100)


@pytest.mark.parametrize("answer", [b"", b"this is not HTTP\r\n\r\n"])
def test_a_daemon_that_does_not_answer_cannot_be_reached(answer: bytes) -> None:
    with serving([answer]) as server, pytest.raises(ConnectFailed, match="cannot be reached"):
        get(server.url)


def test_nobody_there() -> None:
    with (
        pytest.raises(ConnectFailed, match="no luck"),
        closing(BlockingExchange("http://127.0.0.1:1", ACCESS, lambda error: "no luck")) as exchange,
    ):
        exchange.send("GET", "/")


def test_a_request_can_be_aborted_by_another_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchange = BlockingExchange(f"http://127.0.0.1:{listener.getsockname()[1]}", ACCESS)
        exchange.send("GET", "/")
        threading.Timer(0.05, exchange.abort).start()
        with pytest.raises(ConnectFailed):
            exchange.response()
        with pytest.raises(ConnectFailed, match="aborted"):
            exchange.send("GET", "/")
        exchange.close()


@pytest.mark.parametrize("given", [{"ca_file": "ca"}, {"cert_file": "cert"}, {"verify": False}])
def test_an_access_with_anything_about_tls_asks_for_it(given: dict[str, Any]) -> None:
    assert Access(**given).asks_for_tls
    assert not Access(secret="s").asks_for_tls


def test_an_access_does_not_show_its_secret() -> None:
    assert "secret" not in repr(Access(secret="secret"))


HO = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nho"
GONE = b'HTTP/1.1 410 Gone\r\nContent-Length: 18\r\n\r\n{"message":"GONE"}'


def test_a_pipeline_does_not_wait_for_answers_and_keeps_its_connection() -> None:
    with serving([HI + HO, HO + HI], together=2) as server:
        for expected in ([b"hi", b"ho"], [b"ho", b"hi"]):
            with closing(BlockingPipeline(server.url, ACCESS)) as pipeline:
                pipeline.send("POST", "/x?y=z")
                pipeline.send("GET", "/z")
                assert [pipeline.answer("/x"), pipeline.answer("/z")] == expected
    first = server.requests[0].decode().split("\r\n")
    assert first[0] == "POST /x?y=z HTTP/1.1"
    assert "Content-Length: 0" in first
    assert "GET /z HTTP/1.1" in first


def test_a_pipeline_sends_bodies() -> None:
    body = b"x" * 300_000 + b"\r\n\r\n"
    with serving([HI], together=2) as server, closing(BlockingPipeline(server.url, ACCESS)) as pipeline:
        pipeline.send("POST", "/x", body)
        assert pipeline.answer("/x") == b"hi"
    assert server.requests[0].endswith(b"Content-Length: 300004\r\n\r\n" + body)


def test_a_pipeline_tells_of_a_refusal_and_goes_on() -> None:
    with (
        serving([GONE + HI], together=2) as server,
        closing(BlockingPipeline(server.url, ACCESS)) as pipeline,
    ):
        for _ in range(2):
            pipeline.send("GET", "/x?y=z")
        with pytest.raises(BadStatus, match="GONE") as refused:
            pipeline.answer("/x?y=z")
        assert (refused.value.status, refused.value.url) == (410, f"{server.url}/x")
        assert pipeline.answer("/x?y=z") == b"hi"


def _ask(pipeline: BlockingPipeline) -> bytes:
    """Either step may be the one that notices the end of the connection."""
    pipeline.send("GET", "/x")
    return pipeline.answer("/x")


def test_a_pipeline_whose_connection_ends_is_not_kept() -> None:
    with serving([HI], [HI], together=1) as server:
        with closing(BlockingPipeline(server.url, ACCESS)) as pipeline:
            assert _ask(pipeline) == b"hi"
            with pytest.raises(ConnectionLost):
                _ask(pipeline)
        assert get(server.url) == b"hi"


def test_a_pipeline_to_nothing_cannot_be_opened() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectFailed, match="cannot be reached"):
        BlockingPipeline(url, ACCESS)
