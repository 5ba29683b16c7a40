"""The sockets that a daemon listens on: bound before anything else is begun, served once it is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from nsquark.addresses import name_of, split_address
from nsquark.flags import StartError
from nsquark.gotext import format_os_error

BACKLOG = 4096  # connections that wait to be accepted; said to the loop too, which would make it 100 again


def listen(program: str, address: str, *, unix: bool = False) -> socket.socket:
    """A listening socket for `host:port`; with `unix`, for a path if it is none.

    Raises StartError as NSQ words it.
    """
    try:
        sock = _bind_unix(address) if unix and _is_path(address) else _bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, ValueError) as error:
        reason = format_os_error(error) if isinstance(error, OSError) else f"listen tcp: {error}"
        raise StartError(f"failed to instantiate {program} - listen ({address}) failed - {reason}") from None
    return sock


def _is_path(address: str) -> bool:
    _, colon, port = address.rpartition(":")
    return not colon or "/" in port


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(path)
    return sock


def _bind(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    info = socket.getaddrinfo(
        host or None, port, family if host else 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
    )
    family, _, _, _, where = info[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(where)
    return sock


def shown(sock: socket.socket) -> str:
    return name_of(sock.getsockname())


def port_of(sock: socket.socket) -> int:
    """-1 for a unix socket."""
    return -1 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


async def serve(factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket) -> asyncio.AbstractServer:
    """Accept connections from here on."""
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(factory, sock=sock, backlog=BACKLOG)
    return await loop.create_server(factory, sock=sock, backlog=BACKLOG)
