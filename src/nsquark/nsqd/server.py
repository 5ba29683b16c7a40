"""nsqd as a process sees it: the listeners, and starting and stopping in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from nsquark.cli.flags import StartError
from nsquark.http import HttpServer, Router
from nsquark.net.layered_transport import TlsFirst
from nsquark.net.listeners import Listener, listen, port_of, serve, shown
from nsquark.net.tls_handshake import Handshakes
from nsquark.nsqd.core.turn import Turn
from nsquark.nsqd.http import routes as http_api
from nsquark.nsqd.http.guard import tls_required
from nsquark.nsqd.protocol.certificates import Certificates
from nsquark.nsqd.protocol.connection import Connection
from nsquark.nsqd.replica.changes.access import ReplicaAccess
from nsquark.nsqd.replica.changes.follower_routes import ReplicaApi
from nsquark.nsqd.stats.memory import GC_PAUSES
from nsquark.nsqd.stats.statsd import Statsd
from nsquark.nsqd.storage.inspection import DataRefused
from nsquark.nsqd.storage.metadata import BadMetadata

from .broker import Broker
from .draining import drain
from .options import Options, TlsRequired

if TYPE_CHECKING:
    from nsquark.nsqd.protocol.socket_poll import SocketPoll

logger = logging.getLogger(__name__)

MOST_LINGERING = 300_000  # ns for the requests of one client, before the event loop looks for all else
READ_BUFFER = 256 << 10


class Server:
    def __init__(self, options: Options, certificates: Certificates | None = None) -> None:
        """Bind the sockets. Raises StartError.

        A member of a replica group has its TCP port closed until it serves as the primary.
        """
        self.options = options
        self._certificates = certificates or Certificates(options)
        self._tcp = listen("nsqd", options.tcp_address, unix=True, closed=bool(options.replica_group))
        self._http: socket.socket | None = None
        if options.http_address:
            self._http = listen("nsqd", options.http_address, unix=True)
        self._https: socket.socket | None = None
        if options.https_address and self._certificates.offered:
            self._https = listen("nsqd", options.https_address)
        if not options.replica_group:
            logger.info("TCP: listening on %s", shown(self._tcp))
        if self._http is not None:
            logger.info("HTTP: listening on %s", shown(self._http))
        if self._https is not None:
            logger.info("HTTPS: listening on %s", shown(self._https))
        self._tcp_server: Listener | None = None
        self._servers: list[Listener] = []  # of HTTP and HTTPS
        self._statsd: Statsd | None = None
        self._http_servers: list[HttpServer] = []
        self._handshakes = Handshakes()
        self.tcp_port = port_of(self._tcp)
        self.http_port = port_of(self._http) if self._http is not None else 0
        self.https_port = port_of(self._https) if self._https is not None else 0
        options.fill_in(max(self.tcp_port, 0), max(self.http_port, 0))

    async def start(self) -> None:
        """Load the data and accept connections. Raises StartError."""
        self.load()
        api = self.api()
        replica = ReplicaApi(
            self.broker.recorder, self.broker.data_path, ReplicaAccess(self.options), self.broker.node.uuid
        )
        replica.add_to(api)
        await self.serve_tcp()
        await self.serve_http(api)

    def load(self) -> None:
        """Load the data. Raises StartError."""
        loop = asyncio.get_running_loop()
        try:
            broker = self.broker = Broker(self.options, loop, self._certificates, self._handshakes)
        except DataRefused as error:
            raise StartError(f"failed to load data - {error}") from None
        except BadMetadata as error:
            raise StartError(f"failed to load metadata - {error}") from None
        except OSError as error:
            raise StartError(f"failed to instantiate nsqd - {error}") from None
        broker.tcp_port, broker.http_port, broker.https_port = self.tcp_port, self.http_port, self.https_port
        try:
            broker.load()
        except DataRefused as error:
            raise StartError(f"failed to load data - {error}") from None
        except BadMetadata as error:
            raise StartError(f"failed to load metadata - {error}") from None
        except OSError as error:
            raise StartError(f"failed to persist metadata - {error}") from None
        GC_PAUSES.watch()

    def api(self) -> Router:
        """The routes of a node that is loaded."""
        return http_api.router(self.broker)

    async def serve_tcp(self) -> None:
        """Accept clients, and tell nsqlookupds and statsd of this node."""
        loop, broker, options = asyncio.get_running_loop(), self.broker, self.options
        shared = bytearray(READ_BUFFER)
        poll = broker.poll = new_poll(shared)
        if poll is not None:
            loop.add_reader(poll.fileno(), _read, poll, broker.turn)
        self._tcp_server = await serve(lambda: Connection(broker, broker.timers, shared), self._tcp)
        if options.replica_group:
            logger.info("TCP: listening on %s", shown(self._tcp))
        broker.lookup.set_addresses(options.lookupd_tcp_address)
        if options.statsd_address:
            self._statsd = Statsd(broker)

    async def serve_http(self, routes: Router) -> None:
        """Accept HTTP and HTTPS clients, or give those that are there and those to come other routes."""
        closed = self.options.tls_required == TlsRequired.EVERYBODY
        plain = tls_required(self.https_port) if closed else routes
        if self._http_servers:
            for server in self._http_servers:
                server.use(plain if server is self._http_servers[0] and self._http else routes)
            return
        if self._http is not None:
            http_server = HttpServer(plain)
            self._http_servers.append(http_server)
            self._servers.append(await serve(http_server.protocol, self._http))
        if self._https is not None:
            secure = HttpServer(routes)
            self._http_servers.append(secure)
            new_stream = self._certificates.new_stream
            self._servers.append(
                await serve(lambda: TlsFirst(secure.protocol, self._handshakes, new_stream), self._https)
            )

    async def drain(self, hurry: asyncio.Event) -> None:
        """Leave the nsqlookupds, accept no more TCP clients, and let consumers answer what they have.

        That takes `--drain-timeout` at most, and ends when `hurry` is set. HTTP is served meanwhile.
        """
        self.broker.draining = True
        if self._tcp_server is not None:
            self._tcp_server.close()
        self.broker.lookup.close()
        await drain(self.broker, self.options.drain_timeout, hurry)

    def close_listeners(self) -> None:
        """Accept no connections any more."""
        for server in (self._tcp_server, *self._servers):
            if server is not None:
                server.close()

    def close_http(self) -> None:
        for http_server in self._http_servers:
            http_server.close()

    def reload(self) -> None:
        """Read the certificates again."""
        self._certificates.reload()

    async def stop(self) -> bool:
        """Stop accepting, close every connection, store everything; returns whether that could be stored."""
        self.broker.stopping = True  # a client that was accepted just now is closed at once
        self.close_listeners()
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
        broker.lookup.close()
        broker.turn.run()
        await asyncio.sleep(0)  # so that the answers go out
        for connection in list(broker.connections):
            connection.abort()
        self.close_http()
        broker.handshakes.close()
        if broker.poll is not None:
            asyncio.get_running_loop().remove_reader(broker.poll.fileno())
            broker.poll.close()
        await broker.stop_saving()
        stored = broker.close()
        await broker.recorder.finish()
        return stored


def new_poll(shared: bytearray) -> SocketPoll | None:
    """What reads the sockets of all clients; None where the transports of the event loop have to.

    That is so without a compiler, and without epoll, which is Linux's.
    """
    try:
        from nsquark.nsqd.protocol.socket_poll import SocketPoll
    except ImportError:
        return None
    return SocketPoll(shared)


def _read(poll: SocketPoll, turn: Turn) -> None:
    """Read every socket that has something, and do what follows from it.

    Where that pays, and everything is answered, stay awake for the next request, too (`Lingering`).
    """
    began = 0
    while True:
        turn.hold()
        try:
            poll.run()
        finally:  # in any case: the turn is held, and no other call runs it
            turn.run()
        # The answers of a replica group wait for its members.
        if turn.scheduled or turn.send_copies is not None or not poll.linger():
            return
        now = turn.monotonic()
        if began == 0:
            began = now
        elif now - began > MOST_LINGERING:
            return
