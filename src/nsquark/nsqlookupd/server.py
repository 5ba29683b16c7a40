"""nsqlookupd as a process sees it: the listeners, and starting and stopping in order."""

from __future__ import annotations

import asyncio
import logging

from nsquark.http import HttpServer
from nsquark.net.listeners import Listener, listen, port_of, serve, shown

from . import http_api
from .connection import Connection
from .directory import Directory
from .options import Options

logger = logging.getLogger(__name__)


class Server:
    def __init__(self, options: Options) -> None:
        """Bind the sockets. Raises StartError."""
        self._tcp = listen("nsqlookupd", options.tcp_address)
        self._http = listen("nsqlookupd", options.http_address)
        logger.info("HTTP: listening on %s", shown(self._http))
        logger.info("TCP: listening on %s", shown(self._tcp))
        self.tcp_port, self.http_port = port_of(self._tcp), port_of(self._http)
        self.directory = Directory(options, self.tcp_port, self.http_port)
        self._http_server = HttpServer(http_api.router(self.directory))
        self._servers: list[Listener] = []

    async def start(self) -> None:
        directory = self.directory
        self._servers.append(await serve(lambda: Connection(directory), self._tcp))
        self._servers.append(await serve(self._http_server.protocol, self._http))

    async def stop(self) -> None:
        """Stop accepting and close every connection, whatever its state, without waiting for any of them."""
        self.directory.stopping = True  # a connection that was accepted just now is closed at once
        for server in self._servers:
            server.close()
        for connection in list(self.directory.connections):
            connection.abort()
        self._http_server.close()
        await asyncio.sleep(0)  # so that they hear of it
