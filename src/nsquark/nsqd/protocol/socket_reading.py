"""What reads a client's socket: its transport, the broker's SocketPoll, or nothing at all."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsquark.nsqd.core.publish import PublishStream

    from .connection import Connection
    from .socket_poll import SocketPoll

logger = logging.getLogger(__name__)


class _By(Enum):
    TRANSPORT = auto()
    POLL = auto()
    NOBODY = auto()


class SocketReading:
    """Pauses and resumes reading for one connection.

    A SocketPoll reads many sockets at once and takes runs of publishes without calling the connection. It can
    read only what comes as it is. With TLS or compression, and to find out why a client has stopped sending,
    the transport reads.
    """

    __slots__ = ("_by", "_connection", "_fd", "_poll", "_stream", "_transport")

    def __init__(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        poll: SocketPoll | None,
        fd: int,
        stream: PublishStream,
    ) -> None:
        self._connection: Connection | None = connection
        self._transport = transport
        self._poll = poll
        self._fd = fd
        self._stream = stream
        self._by = _By.TRANSPORT

    def join_poll(self) -> None:
        """Have the SocketPoll read from here on, if there is one and the transport is reading now."""
        if self._poll is not None and self._by is _By.TRANSPORT and not self._transport.is_closing():
            self._transport.pause_reading()
            self._add_to_poll(self._poll)

    def read_through(self, transport: asyncio.Transport) -> None:
        """Read from another transport, which lies over the first one; reading is paused now."""
        self._transport = transport
        self._poll = None

    def pause(self) -> None:
        if self._by is _By.TRANSPORT:
            self._transport.pause_reading()
            self._by = _By.NOBODY
        else:
            self.leave_poll()

    def resume(self) -> None:
        if self._by is not _By.NOBODY or self._transport.is_closing():
            return
        if self._poll is not None:
            self._add_to_poll(self._poll)
        else:
            self._by = _By.TRANSPORT
            self._transport.resume_reading()

    def _add_to_poll(self, poll: SocketPoll) -> None:
        assert self._connection is not None
        try:
            poll.add(self._fd, self._connection, self._stream)
        except OSError as error:  # the system has a limit for these, too
            name = self._connection.session.remote_address
            logger.warning("PROTOCOL(V2): [%s] is read by the event loop: %s", name, error)
            self._by = _By.TRANSPORT
            self._transport.resume_reading()
        else:
            self._by = _By.POLL

    def leave_poll(self) -> None:
        """Take the socket out of the SocketPoll. Reading is paused then."""
        if self._by is _By.POLL:
            assert self._poll is not None
            assert self._connection is not None
            self._poll.remove(self._fd, self._connection)
            self._by = _By.NOBODY

    def left_by_poll(self) -> None:
        """The SocketPoll has come to the end or to an error, and has removed the socket by itself."""
        self._by = _By.NOBODY
        self._poll = None

    def let_go(self) -> None:
        """The connection is gone: refer to it no more."""
        self.leave_poll()
        self._connection = None
