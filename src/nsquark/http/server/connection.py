"""One HTTP connection: requests to their handlers, responses out in the order of the requests.

Two queues keep a client that pipelines or does not read to its own connection: the reader's requests, which
wait to be handled, and those `_unanswered`, whose responses, or whose predecessors' responses, are not there
yet. While anything waits, nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable
from time import perf_counter
from typing import TYPE_CHECKING, cast

from nsquark.errors import ConnectionLost
from nsquark.kernel import write_some
from nsquark.net.addresses import name_of

from . import access_log
from .body import BodyWriter
from .departure import Departure
from .message import HttpError, PendingResponse, Request, Response, Sent, plain_text
from .reader import INTERNAL_ERROR, RequestReader

if TYPE_CHECKING:
    from .router import Router
    from .server import HttpServer

logger = logging.getLogger(__name__)

TIMED_OUT = plain_text(408, "408 Request Timeout")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A small body goes out in one piece with its head; copying a large one costs more than a second piece.
LARGE_BODY = 16 * 1024


class HttpConnection:
    """An asyncio.Protocol. `deadline` is when the server calls `expire`; it looks each tick."""

    __slots__ = (
        "_began", "_body", "_can_write", "_closing", "_fd", "_limits", "_peer", "_reader", "_reading",
        "_running", "_serial", "_server", "_transport", "_turn", "_unanswered", "_waiting", "_write_left",
        "deadline", "departure",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._transport: asyncio.Transport | None = None
        self._fd = -1  # of the socket, where nothing lies between it and the transport
        self._peer = ""
        self._reader = RequestReader(self, server.router, server.limits)
        self._waiting = self._reader.requests
        self._unanswered: deque[Request] = deque()
        self._running = False
        self._serial = False  # a coroutine is at work: requests that wait may rely on its effects
        self._turn: asyncio.Future[None] | None = None  # that coroutine waits until its answer is the next
        self._body: BodyWriter | None = None
        self._reading = True
        self._can_write = True
        self._closing = False
        self.deadline = math.inf
        self._began = 0.0  # when a read first ended within the request under way
        self._write_left = 0  # unsent bytes when `deadline` was set for writing
        self.departure = Departure()

    @property
    def peer(self) -> str:
        """`ip:port` of the client, or `@` on a unix socket."""
        if not self._peer:
            self._peer = name_of(self._transport.get_extra_info("peername") if self._transport else None)
        return self._peer

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport of the connection, while it is open."""
        return self._transport

    @property
    def can_write(self) -> bool:
        """Whether the transport takes more."""
        return self._can_write

    def use(self, router: Router) -> None:
        """Answer the requests to come by another router."""
        self._reader.use(router)

    def detach(self) -> asyncio.Transport | None:
        """Leave the transport to the caller, which gives it another protocol; None if it is closed.

        Nothing is answered any more. The client must not have sent anything behind the request under way.
        """
        transport = self._transport
        if transport is not None:
            self.connection_lost(None)
        return transport

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._fd = -1 if sock is None else sock.fileno()
        self._server.opened(self)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fd = -1
        self._closing = True
        self._waiting.clear()
        self._unanswered.clear()
        self._wake_body()
        self.departure.tell()
        self._reader.close()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.done:
            return
        was_partial = reader.partial
        reader.feed(data)
        if self._waiting:
            self._run()
        if reader.partial and (reader.completed or not was_partial):
            self._began = self._server.now
        if reader.continue_due:
            self._send_continue()
        self._set_deadline()

    def eof_received(self) -> bool:
        """The client has said all it will. If it has answers coming, it may still be there to read them."""
        self._reader.end()
        self._run()
        self.departure.tell()
        if not (self._waiting or self._unanswered):
            return False
        return self._transport is not None and self._transport.can_write_eof()  # TLS has no half-closing

    def pause_writing(self) -> None:
        self._can_write = False
        self._pause_reading()
        self._set_deadline()

    def resume_writing(self) -> None:
        self._can_write = True
        if self._body is not None:
            self._body.wake()
        self._run()
        self._set_deadline()

    # Handling and answering.

    def _run(self) -> None:
        """Handle what may be handled now; once nothing waits, read on or come to the end."""
        if self._running:
            return
        self._running = True
        waiting, unanswered = self._waiting, self._unanswered
        while (
            waiting and self._can_write and not self._serial and len(unanswered) < self._limits.max_pipelined
        ):
            request = waiting.popleft()
            target = request.target
            if target.route.logged and access_log.is_enabled():
                request.started = perf_counter()
            response = request.response or self._handle(request)
            if response is not None and not unanswered:
                self._write(request, response)
            else:
                request.response = response
                unanswered.append(request)
        self._running = False
        if waiting:
            self._pause_reading()
        elif self._can_write:
            self._resume_reading()
            if self._reader.done and not unanswered:
                self._finish()

    def _handle(self, request: Request) -> Response | None:
        """The handler's response; None if it comes later, by `answer`."""
        target = request.target
        try:
            answer = target.route.handler(request)
        except HttpError as error:
            return error.response
        except Exception:
            logger.exception("HTTP: %s %s failed", request.method, request.path)
            return INTERNAL_ERROR
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, PendingResponse):
            return answer.attach(self, request)
        self._serial = True
        self._server.spawn(self._await(request, answer))
        return None

    async def _await(self, request: Request, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except HttpError as error:
            response = error.response
        except ConnectionLost:
            self._give_up()
            return
        except Exception:
            logger.exception("HTTP: %s %s failed", request.method, request.path)
            response = INTERNAL_ERROR
        if request.body_begun and not isinstance(response, Sent):
            self._give_up()  # the client must not take what it has for the whole
            return
        self._serial = False
        self.answer(request, response)

    def _give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def open_body(self, request: Request, response: Response, start: bytes) -> BodyWriter:
        """Send the head of a response in its turn, and the start of the body; the handler sends the rest."""
        while self._unanswered and self._unanswered[0] is not request:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn
        transport = self._transport
        if transport is None or self._closing:
            raise ConnectionLost("the connection is closed")
        self._body = body = BodyWriter(self, transport, self._limits.write_timeout)  # may want a descriptor
        request.body_begun = True
        await body.begin(response.head + request.connection_header + self._server.date + start)
        return body

    def close_body(self, body: BodyWriter) -> None:
        if self._body is body:
            self._body = None

    def _wake_body(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        if self._body is not None:
            self._body.wake()

    def answer(self, request: Request, response: Response) -> None:
        """A response that was promised is there: send what can be sent in order."""
        request.response = response
        unanswered = self._unanswered
        while unanswered and (first := unanswered[0].response) is not None:
            self._write(unanswered.popleft(), first)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        if self._waiting or self._reader.done:
            self._run()
        if self._reader.continue_due:
            self._send_continue()
        self._set_deadline()

    def _write(self, request: Request, response: Response) -> None:
        transport = self._transport
        if transport is None:
            return
        target = request.target
        end_of_head = self._server.date
        if request.connection_header:
            end_of_head = request.connection_header + end_of_head
        if isinstance(response, Sent):
            pass
        elif target.method == b"HEAD":
            transport.write(response.head + end_of_head)
        elif len(response.body) < LARGE_BODY:
            self._write_now(transport, response.pack(end_of_head))
        else:
            transport.writelines((response.head + end_of_head, response.body))
        if request.started:
            access_log.log_request(request, response)

    def _write_now(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write the last answer past the transport, which would wait for the end of the loop's turn.

        The client makes its next request while others are answered. Answers of a client that pipelines are
        left to the transport, which sends them in one piece.
        """
        done = 0
        if self._fd >= 0 and not (self._unanswered or self._waiting):
            if not transport.get_write_buffer_size() and not transport.is_closing():
                done = write_some(self._fd, data)
                if done == len(data):
                    return
        transport.write(data[done:])  # what the socket did not take: the transport finds out why

    def _send_continue(self) -> None:
        """Ask for the body, once everything before it is answered."""
        if self._transport is not None and not (self._waiting or self._unanswered):
            self._reader.continue_due = False
            self._transport.write(CONTINUE)

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._began = self._server.now  # the time that the server kept a request waiting does not count
            self._transport.resume_reading()

    # Deadlines and the end.

    def _set_deadline(self) -> None:
        if self._closing:
            return
        if not self._can_write:
            self._watch_writing()
        elif self._unanswered or self._waiting:
            self.deadline = math.inf  # our own time, not the client's
        elif self._reader.partial:
            limits = self._limits
            self.deadline = self._began + limits.request_timeout + self._reader.taken / limits.min_rate
        else:
            self.deadline = self._server.idle_deadline

    def _watch_writing(self) -> None:
        if self._transport is not None:
            self._write_left = self._transport.get_write_buffer_size()
            self.deadline = self._server.now + self._limits.write_timeout

    def expire(self) -> None:
        """Called by the server when the deadline has passed."""
        transport = self._transport
        if transport is None:
            return
        if self._closing or not self._can_write:
            if 0 < transport.get_write_buffer_size() < self._write_left:
                self._watch_writing()  # slow, but it reads
            else:
                transport.abort()
        elif self._reader.partial:
            self._reader.refuse(TIMED_OUT)
            self._run()
        else:
            self.close()

    def close(self) -> None:
        """Send what is answered, and close."""
        self._reader.done = True
        self._reader.unread = False
        self._finish()

    def _finish(self) -> None:
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        self._closing = True
        self._watch_writing()
        if not self._reader.unread or not transport.can_write_eof():
            transport.close()
            return
        # To close a socket that has unread bytes is to reset it, and the client would see that in place of
        # the answer. So end our side only, and read into the void until the client ends its own.
        transport.write_eof()
        self.deadline = self._server.now + self._limits.tick + self._limits.linger
