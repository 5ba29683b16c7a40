"""The shared part of all connections of one HTTP server: the router, the limits, the clock, and their end.

The caller listens; every listener (TCP, unix socket, TLS) takes `HttpServer.protocol` as its factory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, cast

from .connection import HttpConnection
from .router import Router


@dataclass(slots=True, kw_only=True)
class Limits:
    """The limits of one client. Times are seconds, kept to within a `tick`.

    A request, from its first byte to its last, may take `request_timeout` plus a second for each `min_rate`
    bytes it has brought. A client that takes nothing of its answers for `write_timeout` is cut off. Of
    pipelined requests, `max_pipelined` may be under way; the others wait, and nothing more is read.
    """

    max_head: int = 64 * 1024
    max_headers: int = 128
    max_pipelined: int = 128
    request_timeout: float = 30.0
    min_rate: int = 1024
    idle_timeout: float = 600.0
    write_timeout: float = 60.0
    # How long to go on reading from a client that was refused, so that it sees the answer and not a reset.
    linger: float = 1.0
    tick: float = 1.0


class HttpServer:
    """Serves a router on as many listeners as the caller makes with `protocol`.

    The clock ticks only while there are connections.
    """

    def __init__(self, router: Router, limits: Limits | None = None) -> None:
        self.router = router
        self.limits = limits or Limits()
        self.connections: set[HttpConnection] = set()
        self.now = 0.0  # the loop's time, as of the last tick
        self.idle_deadline = math.inf  # of a connection that becomes idle now
        self.date = b""  # the Date header and the blank line that ends every head
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(self) -> asyncio.Protocol:
        """A factory for `loop.create_server` and `loop.create_unix_server`."""
        # It has every method of a Protocol. A compiled class cannot inherit from one that is not.
        return cast(asyncio.Protocol, HttpConnection(self))

    def use(self, router: Router) -> None:
        """Answer by another router from now on, also what comes on connections that are open."""
        self.router = router
        for connection in self.connections:
            connection.use(router)

    def close(self) -> None:
        """End all connections. Finished responses are still sent; requests under way are not awaited."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close()

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)
        if self._closed:  # accepted at the last moment
            connection.close()
        if self._timer is None:
            self._tick()

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that is held on to."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.tick, self._tick)
        self.now = now = loop.time()
        self.idle_deadline = now + self.limits.idle_timeout
        self.date = b"Date: " + http_date(time.time()) + b"\r\n\r\n"
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.expire()


def http_date(now: float) -> bytes:
    """As `Sun, 06 Nov 1994 08:49:37 GMT`. Our own, since email.utils costs a daemon's start 6 ms."""
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(now)
    name = "MonTueWedThuFriSatSun"[3 * weekday : 3 * weekday + 3]
    month_name = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * month - 3 : 3 * month]
    return f"{name}, {day:02d} {month_name} {year} {hour:02d}:{minute:02d}:{second:02d} GMT".encode()
