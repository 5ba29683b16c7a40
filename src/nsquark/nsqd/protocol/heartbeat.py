"""The heartbeat of a connection, and how long its client may be silent or leave its answers unread."""

from __future__ import annotations

import logging
from time import monotonic_ns
from typing import TYPE_CHECKING

from nsquark.nsqd.core.timers import NEVER, Timers
from nsquark.wire import HEARTBEAT

from .read_states import AUTHORIZING, BUSY, READING, WAITING

if TYPE_CHECKING:
    from .connection import Connection

logger = logging.getLogger(__name__)

_BEATING = frozenset({READING, BUSY, AUTHORIZING})


class Heartbeat:
    """The heartbeat of one connection. `wakes_at` belongs to the Timers."""

    __slots__ = ("_beats_at", "_connection", "_interval", "_timers", "wakes_at")

    def __init__(self, connection: Connection, timers: Timers) -> None:
        """`timers` count time.monotonic_ns."""
        self._connection = connection
        self._timers = timers
        self._interval = self._beats_at = 0
        self.wakes_at = NEVER

    def set_interval(self, seconds: float) -> None:
        """Beat every so often from now on; 0 ends heartbeats, and with them every deadline of the client."""
        self._interval = round(seconds * 1e9)
        self._timers.cancel(self)
        if self._interval:
            self._beats_at = monotonic_ns() + self._interval
            self._timers.schedule(self, self._beats_at)

    def stop(self) -> None:
        """The connection is gone: refer to it no more."""
        self._timers.cancel(self)
        del self._connection

    def wake(self, now: int) -> None:
        """Beat if it is time. Close the connection if its client reads nothing or is silent for two beats."""
        connection, interval = self._connection, self._interval
        if not interval or connection.is_closing():
            return
        if connection.unread_since and now - connection.unread_since >= interval:
            logger.info("PROTOCOL(V2): [%s] closing: it does not read", connection.session.remote_address)
            connection.abort()
            return
        if connection.read_state in WAITING:
            connection.heard_at = now  # the client waits for nsqd
        deadline = connection.last_heard() + 2 * interval
        if now >= self._beats_at:
            if connection.greeted and not connection.unread_since and connection.read_state in _BEATING:
                connection.write(HEARTBEAT)
            self._beats_at = now + interval
        if now >= deadline:
            connection.fall_silent()
            return
        self._timers.schedule(self, min(self._beats_at, deadline))
