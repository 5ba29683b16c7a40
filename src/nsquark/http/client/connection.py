"""A connection of the HTTP client that is kept: one request at a time, one answer each, its body if wanted.

`pool.py` makes the connections and chooses among them. What this module promises: a request ends. Its
future gets the answer, or an error when the peer hangs up, sends what is no HTTP, sends too much, or when the
time is up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import httptools

from nsquark.errors import ConnectionLost

from .protocol import MAX_HEAD


@dataclass(slots=True)
class Reply:
    """The answer to a request. `body` is empty unless the connection keeps bodies."""

    status: int
    location: str  # of a redirect
    body: bytes = b""


class HungUp(ConnectionLost):
    """The peer closed the connection before it sent a byte of the answer."""


class ClientConnection(asyncio.Protocol):
    """One connection, made by `ClientPool`."""

    def __init__(self, max_body: int, keep_bodies: bool = False) -> None:
        self.usable = False  # whether a request may be sent, if none is under way
        self.used = False  # whether an answer has come over it before
        self._max_body = max_body
        self._keep_bodies = keep_bodies
        self._pieces: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False  # whether a byte of the answer has come
        self._size = 0  # of the head so far, then of the body
        self._head_complete = False
        self._has_length = False
        self._location = ""

    def send(self, request: bytes, deadline: float) -> asyncio.Future[Reply]:
        """Send a request. The future gets its answer, or ConnectionLost by the loop's time `deadline`."""
        assert self._transport is not None
        assert self._waiter is None
        self._waiter = self._loop.create_future()
        self._size = 0
        self._heard = self._head_complete = self._has_length = False
        self._location = ""
        self._pieces = []
        self._timer = self._loop.call_at(deadline, self._late)
        self._transport.write(request)
        return self._waiter

    def abort(self) -> None:
        """Close at once. A request under way fails."""
        self._fail("closed by this client")

    def _late(self) -> None:
        self._fail("no whole answer in time")

    def _fail(self, reason: str) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()
        waiter = self._end_request()
        if waiter is not None and not waiter.done():
            waiter.set_exception(ConnectionLost(reason))

    def _end_request(self) -> asyncio.Future[Reply] | None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiter, self._waiter = self._waiter, None
        return waiter

    # ---- the calls of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # an answer to no request
            self._fail("")
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("an upgrade that was not asked for")
        except httptools.HttpParserError as error:
            self._fail(str(error.__cause__ or error.__context__ or error))
        else:
            if not self._head_complete:
                self._size += len(data)
                if self._size > MAX_HEAD:
                    self._fail(f"a head of more than {MAX_HEAD} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        waiter = self._end_request()
        if waiter is None or waiter.done():
            return
        if self._head_complete and not self._has_length and exc is None:
            waiter.set_result(self._reply())  # the body ends where the connection does
        elif not self._heard:
            waiter.set_exception(HungUp("the connection was closed before an answer"))
        else:
            waiter.set_exception(ConnectionLost("the connection ended before the answer did"))

    # ---- the calls of httptools

    def on_message_begin(self) -> None:
        if self._waiter is None:
            raise ConnectionLost("an answer to no request")

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size == 8 and name.lower() == b"location":
            self._location = value.decode("latin-1")
        elif (size == 14 and name.lower() == b"content-length") or (
            size == 17 and name.lower() == b"transfer-encoding"
        ):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._size = 0

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._max_body:
            raise ConnectionLost(f"an answer of more than {self._max_body} bytes")
        if self._keep_bodies:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # the answer is still to come
            self._head_complete = self._has_length = False
            return
        transport = self._transport
        assert transport is not None
        reply = self._reply()
        waiter = self._end_request()
        # A peer that answers before it has read the request may never read it.
        if not self._parser.should_keep_alive() or transport.get_write_buffer_size():
            self.usable = False
            transport.abort()
        self.used = True
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def _reply(self) -> Reply:
        pieces, self._pieces = self._pieces, []
        return Reply(self._parser.get_status_code(), self._location, b"".join(pieces))
