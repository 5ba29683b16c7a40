"""Listening on addresses and paths, as NSQ words what goes wrong."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.net.listeners import listen, port_of, serve, shown
from tests.daemon import until


def test_port_0_is_any() -> None:
    with listen("nsqd", "127.0.0.1:0") as sock:
        assert shown(sock) == f"127.0.0.1:{port_of(sock)}"


def test_a_path_is_a_unix_socket_where_that_is_allowed(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with listen("nsqd", path, unix=True) as sock:
        assert sock.family == socket.AF_UNIX
        assert (port_of(sock), shown(sock)) == (-1, path)
    with pytest.raises(StartError, match="missing port in address"):
        listen("nsqlookupd", path)


def test_a_port_in_use_is_told_with_its_address() -> None:
    with listen("nsqd", "127.0.0.1:0") as sock:
        address = shown(sock)
        with pytest.raises(StartError, match=rf"failed to instantiate nsqd - listen \({address}\) failed"):
            listen("nsqd", address)


async def test_small_writes_are_sent_at_once() -> None:
    opened: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            opened.put_nowait(transport)

    sock = listen("nsqd", "127.0.0.1:0")
    port = port_of(sock)
    listener = await serve(Accepted, sock)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = await asyncio.wait_for(opened.get(), 10)
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.close()
    writer.close()
    listener.close()


async def test_connections_are_accepted_until_it_is_closed() -> None:
    made: list[asyncio.Protocol] = []

    def protocol() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    sock = listen("nsqd", "127.0.0.1:0")
    port = port_of(sock)
    listener = await serve(protocol, sock)
    for number in range(1, 4):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda number=number: len(made) == number)
        writer.close()
    listener.close()
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
