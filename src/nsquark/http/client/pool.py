"""Requests over connections that are kept, for a program that sends many. Bodies are kept on demand.

Connections are kept by origin (scheme, host and port), up to a number in all; the one that was idle longest
makes room for others. A request over a kept connection that its peer has closed meanwhile is sent once more,
over a new one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin

from nsquark.errors import ConnectFailed, ConnectionLost, UsageError

from .connection import ClientConnection, HungUp, Reply
from .protocol import pack_request, parse_url, port_of

MAX_DROPPED_BODY = 64 << 20
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MOST_REDIRECTS = 10
_PRIVATE = {"authorization", "cookie", "cookie2", "www-authenticate"}  # not for another host

Origin = tuple[str, str, int]


@dataclass(slots=True)
class ClientRequest:
    """A request that may be redirected."""

    method: str
    parts: SplitResult
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def origin(self) -> Origin:
        return origin_of(self.parts)

    def pack(self) -> bytes:
        return pack_request(self.method, self.parts, self.body, self.headers, keep_alive=True)

    def redirected(self, reply: Reply) -> ClientRequest:
        """The request that an answer leads to. Raises ConnectionLost if its location is no URL for it."""
        try:
            parts = parse_url(urljoin(self.parts.geturl(), quote_url(reply.location)))
            port_of(parts)
        except (UsageError, ValueError):
            raise ConnectionLost(f"a redirect to {reply.location[:200]!r}") from None
        again = reply.status in (307, 308)
        headers = {
            name: value
            for name, value in self.headers.items()
            if (again or name.lower() != "content-type")
            and (parts.hostname == self.parts.hostname or name.lower() not in _PRIVATE)
        }
        if again:
            return ClientRequest(self.method, parts, headers, self.body)
        return ClientRequest("GET", parts, headers)


def origin_of(parts: SplitResult) -> Origin:
    return parts.scheme, parts.hostname or "", port_of(parts)


def quote_url(url: str) -> str:
    """The URL with everything escaped that may not stand in one, and nothing else."""
    return quote(url, safe="%/:=&?~#+!$,;'@()*[]", errors="surrogateescape")


class BegunRequest:
    """A request that `ClientPool.begin` has sent. It is to be awaited or given up."""

    def __init__(
        self, pool: ClientPool, origin: Origin, connection: ClientConnection, reply: asyncio.Future[Reply]
    ) -> None:
        self._pool = pool
        self._origin = origin
        self._connection = connection
        self._reply = reply

    async def reply(self) -> Reply:
        """The answer. Raises ConnectionLost; HungUp if the peer had closed the kept connection."""
        reply = await self._reply
        if self._connection.usable:
            self._pool.keep(self._origin, self._connection)
        return reply

    def give_up(self) -> None:
        self._reply.cancel()
        self._connection.abort()


class ClientPool:
    """Sends requests. At most `keep` idle connections are kept."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        timeout: float,
        keep: int,
        max_body: int = MAX_DROPPED_BODY,
        keep_bodies: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`timeout` is for a request and its redirects, `connect_timeout` for each connection.

        `tls` is for https; without it, the system's roots count.
        """
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._keep = keep
        self._max_body = max_body
        self._keep_bodies = keep_bodies
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._by_age: dict[ClientConnection, Origin] = {}  # the idle ones, idle longest first
        self._tls = tls
        self._loop = asyncio.get_running_loop()

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use this context for connections to come; those that are kept go on with theirs."""
        self._tls = tls

    def deadline(self) -> float:
        """When a request that begins now has to be answered, by the loop's time."""
        return self._loop.time() + self._timeout

    async def follow(self, request: ClientRequest, reply: Reply, deadline: float) -> Reply:
        """The last answer, beginning with the one that `request` got, after at most ten redirects.

        Raises what `send` raises, also for a redirect to what is no http or https URL.
        """
        for _ in range(_MOST_REDIRECTS):
            if reply.status not in _REDIRECTS or not reply.location:
                return reply
            request = request.redirected(reply)
            reply = await self.send(request.origin, request.pack(), deadline)
        if reply.status in _REDIRECTS:
            raise ConnectionLost(f"stopped after {_MOST_REDIRECTS} redirects")
        return reply

    async def send(self, origin: Origin, packed: bytes, deadline: float, *, once: bool = False) -> Reply:
        """Send a packed request, and follow no redirect. Raises ConnectFailed and ConnectionLost.

        `once` is for a request that must not be sent twice: it gets a connection of its own.
        """
        while True:
            connection = (None if once else self._take(origin)) or await self._connect(origin, deadline)
            kept = connection.used
            try:
                reply = await connection.send(packed, deadline)
            except HungUp:
                if not kept:
                    raise
            except BaseException:
                connection.abort()
                raise
            else:
                if connection.usable:
                    self.keep(origin, connection)
                return reply

    def begin(self, origin: Origin, packed: bytes, deadline: float) -> BegunRequest | None:
        """Send a packed request over a kept connection, now; None where none is kept.

        A caller can so send a handful of requests before it awaits the first answer, without a task for each.
        """
        connection = self._take(origin)
        if connection is None:
            return None
        return BegunRequest(self, origin, connection, connection.send(packed, deadline))

    # ---- connections

    def _take(self, origin: Origin) -> ClientConnection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if self._by_age.pop(connection, None) is not None and connection.usable:
                return connection
        return None

    def keep(self, origin: Origin, connection: ClientConnection) -> None:
        """Keep a connection for the next request."""
        idle = self._idle.get(origin)
        if idle is None:
            idle = self._idle[origin] = []
        idle.append(connection)
        self._by_age[connection] = origin
        if len(self._by_age) > self._keep:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._by_age))
        origin = self._by_age.pop(oldest)
        oldest.abort()
        idle = self._idle[origin]
        idle.remove(oldest)
        if not idle:
            del self._idle[origin]

    async def _connect(self, origin: Origin, deadline: float) -> ClientConnection:
        scheme, host, port = origin
        limit = min(deadline, self._loop.time() + self._connect_timeout)
        try:
            async with asyncio.timeout_at(limit):
                transport, connection = await self._loop.create_connection(
                    lambda: ClientConnection(self._max_body, self._keep_bodies),
                    host,
                    port,
                    ssl=self._context() if scheme == "https" else None,
                )
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._connect_timeout} s") from None
        except OSError as error:
            raise ConnectFailed(f"no connection: {error.strerror or error}") from None
        except UnicodeError:  # of a host name that no resolver takes
            raise ConnectFailed(f"{host!r} is no host name") from None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _context(self) -> ssl.SSLContext:
        """The system's roots, read once: that takes longer than a request."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._by_age:
            connection.abort()
        self._by_age.clear()
        self._idle.clear()
