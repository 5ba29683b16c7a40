"""Writing past a transport: at once where nothing is before it, and never out of order."""

from __future__ import annotations

import asyncio
import socket

from nsquark.net.direct_write import send_at_once


async def connected() -> tuple[asyncio.Transport, socket.socket, int]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    return transport, theirs, ours.fileno()


async def test_it_is_there_before_the_loop_goes_on() -> None:
    transport, theirs, fd = await connected()
    with theirs:
        send_at_once(transport, fd, b"now")
        theirs.setblocking(False)
        assert theirs.recv(100) == b"now"
        transport.close()


async def test_what_the_socket_does_not_take_follows_in_order() -> None:
    transport, theirs, fd = await connected()
    with theirs:
        large = bytes(range(256)) * (1 << 14)
        send_at_once(transport, fd, large)
        assert transport.get_write_buffer_size()
        send_at_once(transport, fd, b"behind")
        theirs.setblocking(False)
        loop, got = asyncio.get_running_loop(), b""
        while len(got) < len(large) + 6:
            got += await loop.sock_recv(theirs, 1 << 20)
        assert got == large + b"behind"
        transport.close()


async def test_a_transport_that_closes_gets_it_and_the_descriptor_does_not() -> None:
    transport, theirs, fd = await connected()
    with theirs:
        transport.abort()
        send_at_once(transport, fd, b"late")
        await asyncio.sleep(0)
        assert theirs.recv(100) == b""
