"""nsqd as a process sees it: the listeners, and starting and stopping in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable

from nsquark.flags import StartError
from nsquark.gotext import format_os_error
from nsquark.http import HttpServer

from . import http_api
from .broker import Broker
from .connection import Connection
from .memory import GC_PAUSES
from .metadata import BadMetadata
from .options import Options
from .statsd import Statsd
from .timers import Timers

logger = logging.getLogger(__name__)

READ_BUFFER = 256 << 10
BACKLOG = 4096  # connections that wait to be accepted; said to the loop too, which would make it 100 again


def listen(address: str) -> socket.socket:
    """A listening socket for `host:port`, or for a unix socket path. Raises StartError as NSQ words it."""
    try:
        host, port = _split_address(address)
        if port is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(address)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            info = socket.getaddrinfo(
                host or None, port, family if host else 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE
            )
            family, _, _, _, where = info[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, ValueError, OverflowError) as error:
        reason = format_os_error(error) if isinstance(error, OSError) else str(error)
        raise StartError(f"failed to instantiate nsqd - listen ({address}) failed - {reason}") from None
    return sock


def _split_address(address: str) -> tuple[str, int | None]:
    host, colon, port = address.rpartition(":")
    if not colon or "/" in port:
        return address, None
    if port and not port.isdigit():
        port = str(socket.getservbyname(port, "tcp"))
    return host.removeprefix("[").removesuffix("]"), int(port or 0)


def shown(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return str(sock.getsockname())
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(sock: socket.socket | None) -> int:
    if sock is None:
        return 0
    return -1 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])


class Server:
    def __init__(self, options: Options) -> None:
        """Bind the sockets. Raises StartError."""
        self.options = options
        self._tcp = listen(options.tcp_address)
        self._http = listen(options.http_address) if options.http_address else None
        logger.info("TCP: listening on %s", shown(self._tcp))
        if self._http is not None:
            logger.info("HTTP: listening on %s", shown(self._http))
        self._servers: list[asyncio.AbstractServer] = []
        self._statsd: Statsd | None = None

    async def start(self) -> None:
        """Load the data and accept connections. Raises StartError."""
        loop = asyncio.get_running_loop()
        options = self.options
        tcp_port, http_port = _port(self._tcp), _port(self._http)
        options.fill_in(max(tcp_port, 0), max(http_port, 0))
        broker = self.broker = Broker(options, loop)
        broker.tcp_port, broker.http_port = tcp_port, http_port
        try:
            broker.load()
        except BadMetadata as error:
            raise StartError(f"failed to load metadata - {error}") from None
        except OSError as error:
            raise StartError(f"failed to persist metadata - {error}") from None
        shared = bytearray(READ_BUFFER)
        timers = self._timers = Timers(loop, time.monotonic_ns)
        self._servers.append(await _serve(loop, lambda: Connection(broker, timers, shared), self._tcp))
        if self._http is not None:
            self._http_server = HttpServer(http_api.router(broker))
            self._servers.append(await _serve(loop, self._http_server.protocol, self._http))
        GC_PAUSES.watch()
        if options.statsd_address:
            self._statsd = Statsd(broker)

    async def stop(self) -> None:
        """Stop accepting, close every connection, store everything."""
        self.broker.stopping = True  # who was accepted just now is closed at once
        for server in self._servers:
            server.close()
        if self._statsd is not None:
            self._statsd.stop()
        broker = self.broker
        for address, port in (
            (self.options.tcp_address, broker.tcp_port),
            (self.options.http_address, broker.http_port),
        ):
            if port == -1:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(address)
        broker.turn.run()
        await asyncio.sleep(0)  # so that the answers go out
        for connection in list(broker.connections):
            connection.abort()
        if self._http is not None:
            self._http_server.close()
        await broker.stop_saving()
        self._timers.close()
        broker.close()


async def _serve(
    loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket
) -> asyncio.AbstractServer:
    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(factory, sock=sock, backlog=BACKLOG)
    return await loop.create_server(factory, sock=sock, backlog=BACKLOG)
