"""The sockets that a daemon listens on: bound before anything else is begun, served once it is ready."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from nsquark.cli.flags import StartError
from nsquark.gotext import format_os_error

from .addresses import is_path, name_of, split_address
from .rate_limited_log import Seldom

logger = logging.getLogger(__name__)

BACKLOG = 4096  # connections that wait to be accepted
AT_ONCE = 128  # that are accepted in a turn of the loop
ACCEPT_AGAIN = 0.1  # seconds after none could be accepted


def listen(program: str, address: str, *, unix: bool = False, closed: bool = False) -> socket.socket:
    """A listening socket for `host:port`; with `unix`, for a path if it is none.

    With `closed`, the socket has its address and refuses connections until `serve` gets it. Raises StartError
    as NSQ words it.
    """
    try:
        sock = _bind_unix(address) if unix and is_path(address) else _bind(address)
        if not closed:
            sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, ValueError) as error:
        reason = format_os_error(error) if isinstance(error, OSError) else f"listen tcp: {error}"
        raise StartError(f"failed to instantiate {program} - listen ({address}) failed - {reason}") from None
    return sock


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
    # asyncio sets TCP_NODELAY only on connections whose protocol number says TCP; they have the listener's.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(where)
    return sock


def shown(sock: socket.socket) -> str:
    return name_of(sock.getsockname())


def port_of(sock: socket.socket) -> int:
    """-1 for a unix socket."""
    return -1 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


class Listener:
    """Accepts connections until it is closed.

    The event loop's own server would do, but uvloop's closes its socket for good when a connection cannot be
    accepted for want of a descriptor. Here the connections wait in the backlog, and are accepted once there
    are descriptors again.
    """

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket) -> None:
        self._factory = factory
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._complaints = Seldom(logger)
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more descriptors, or no memory
                self._complaints.warn("cannot accept on %s: %s", shown(self._sock), error)
                self._loop.remove_reader(self._sock.fileno())
                self._retry = self._loop.call_later(ACCEPT_AGAIN, self._listen)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError as error:  # gone already, for one
            connection.close()
            self._complaints.warn("cannot open a connection on %s: %s", shown(self._sock), error)

    def close(self) -> None:
        """Accept no more. Connections that are open stay so."""
        if self._retry is not None:
            self._retry.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


async def serve(factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket) -> Listener:
    """Accept connections from here on."""
    sock.listen(BACKLOG)
    return Listener(factory, sock)
