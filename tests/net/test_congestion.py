"""Connections within one machine, as far as this machine has what they are about."""

import socket

import pytest

from nsquark.net.congestion import do_not_pace

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="not Linux")


def congestion(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def choose(sock: socket.socket, name: bytes) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    except OSError:
        pytest.skip(f"there is no {name.decode()} here, or not for us")


def connect(server: socket.socket) -> socket.socket:
    client = socket.socket()
    client.connect(server.getsockname())
    return client


def test_a_connection_to_this_machine_is_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server) as client:
        choose(client, b"bbr")
        do_not_pace(client.fileno())
        assert congestion(client) == b"reno"
        client.send(b"still open")


def test_what_does_not_pace_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, connect(server) as client:
        other = next((name for name in (b"cubic", congestion(client)) if name != b"bbr"), b"reno")
        choose(client, other)
        do_not_pace(client.fileno())
        assert congestion(client) == other


def test_a_connection_to_another_address_is_left_alone() -> None:
    """127.0.0.2 stands for another machine."""
    with socket.create_server(("127.0.0.2", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        choose(client, b"bbr")
        do_not_pace(client.fileno())
        assert congestion(client) == b"bbr"


def test_what_is_no_tcp_connection_is_none_of_its_business() -> None:
    one, other = socket.socketpair()
    with one, other:
        do_not_pace(one.fileno())
    with socket.socket() as unconnected:
        do_not_pace(unconnected.fileno())
