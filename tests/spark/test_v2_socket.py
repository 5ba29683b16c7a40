"""The blocking V2 socket against a server that plays a transcript, whole and byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nsquark.errors import ConnectionLost
from nsquark.spark.v2_socket import ConnectionClosed, ErrorFrame, V2Socket
from nsquark.wire.frames import HEARTBEAT, OK, pack_error, pack_response


@contextmanager
def playing(transcript: bytes, byte_by_byte: bool) -> Iterator[tuple[V2Socket, list[bytes]]]:
    """A socket whose nsqd sends the transcript and closes; and all that nsqd has received in the end."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def play() -> None:
            peer, _ = server.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for part in [bytes([each]) for each in transcript] if byte_by_byte else [transcript]:
                    peer.sendall(part)
                peer.shutdown(socket.SHUT_WR)
                while data := peer.recv(1 << 16):
                    received.append(data)

        thread = threading.Thread(target=play)
        thread.start()
        with V2Socket(f"127.0.0.1:{server.getsockname()[1]}", 20.0) as connection:
            yield connection, received
        thread.join()


BOTH = pytest.mark.parametrize("byte_by_byte", [False, True])


@BOTH
def test_responses_come_one_by_one_and_heartbeats_are_answered(byte_by_byte: bool) -> None:
    transcript = OK + OK + HEARTBEAT + pack_response(b"CLOSE_WAIT") + OK
    with playing(transcript, byte_by_byte) as (connection, received):
        assert [connection.read_response() for _ in range(4)] == [b"OK", b"OK", b"CLOSE_WAIT", b"OK"]
        with pytest.raises(ConnectionClosed):
            connection.read_response()
    assert b"".join(received) == b"NOP\n"


@BOTH
def test_identify_sends_the_magic_and_returns_the_answer(byte_by_byte: bool) -> None:
    with playing(pack_response(b'{"http_port": 4151}') + OK, byte_by_byte) as (connection, received):
        assert connection.identify({"tls_v1": False}) == {"http_port": 4151}
        connection.authenticate("secret")
    assert b"".join(received) == b'  V2IDENTIFY\n\0\0\0\x11{"tls_v1": false}AUTH\n\0\0\0\6secret'


def test_what_is_no_answer_to_identify_is_shown() -> None:
    with playing(OK, False) as (connection, _), pytest.raises(ValueError, match="b'OK'"):
        connection.identify({})


@BOTH
def test_an_error_frame_is_raised(byte_by_byte: bool) -> None:
    with playing(pack_error(b"E_INVALID no"), byte_by_byte) as (connection, _):
        with pytest.raises(ErrorFrame, match="E_INVALID no") as caught:
            connection.read_response()
    assert caught.value.data == b"E_INVALID no"


@pytest.mark.parametrize("transcript", [b"HTTP/1.1 400 Bad Request", b"\x7f\0\0\0\0\0\0\0"])
def test_another_protocol_is_a_connection_lost(transcript: bytes) -> None:
    with playing(transcript, False) as (connection, _), pytest.raises(ConnectionLost):
        connection.read_response()
