"""From bytes to requests, without a socket or a clock, for one connection.

The parser is `httptools`; this decides, as soon as a head is complete, whether the rest is wanted, and keeps
what is buffered within the limits.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from .head import (
    EXPECTS_CONTINUE,
    HEAD_TOO_BIG,
    MALFORMED,
    WANTS_UPGRADE,
    Refused,
    read_head,
    without_upgrade,
)
from .message import CLOSE, Request, Response, v1_error
from .router import BAD_REQUEST, KnownHead, Router, Target

if TYPE_CHECKING:
    from .connection import HttpConnection
    from .server import Limits

logger = logging.getLogger(__name__)

INTERNAL_ERROR = v1_error(500, "INTERNAL_ERROR")
# The most bytes on the wire per byte of a chunked body: "1\r\nx\r\n", and some to spare for extensions.
CHUNK_OVERHEAD = 8
# For requests that are answered without having been understood.
NO_TARGET = Target(b"-", b"-", BAD_REQUEST, "", None)
END_OF_HEAD = b"\r\n\r\n"


class RequestReader:
    """Feed it what arrives; take complete requests off `requests`.

    A request that was refused has its response already, and is the last one: `done` is then set, and nothing
    more is parsed.
    """

    __slots__ = (
        "_between", "_body", "_body_parts", "_body_size", "_connection", "_headers", "_last_head",
        "_last_heads", "_last_known", "_length", "_limits", "_ordinary", "_parser", "_replay", "_request",
        "_router", "_url", "completed", "continue_due", "done", "on_body", "on_header", "on_message_begin",
        "on_url", "partial", "requests", "taken", "unread",
    )  # fmt: skip

    def __init__(self, connection: HttpConnection | None, router: Router, limits: Limits) -> None:
        self._connection = connection
        self._router = router
        self._limits = limits
        self.requests: deque[Request] = deque()
        self.partial = False  # the last read ended within a request
        self.taken = 0  # bytes of that request so far (but not those of a read that completed another one)
        self.completed = False  # the last read that was parsed completed one, too
        self.continue_due = False  # its sender waits for `100 Continue`
        self.done = False
        self.unread = False  # the client may be still sending what is not parsed

        # A client repeats its head: the last one that was known, its meaning, and of which heads it was one.
        self._last_head = b""
        self._last_known: KnownHead | None = None
        self._last_heads = router.known_heads

        # The parser calls these collections' own methods, which are compiled, where it could call ours.
        self._url: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._between = [True]  # empty while the parser is within a request
        self.on_message_begin = self._between.clear
        self.on_url = self._url.append
        self.on_header = self._headers.__setitem__
        self.on_body = self._body.append
        self._parser = HttpRequestParser(self)
        self._request: Request | None = None  # the one whose head is complete and whose body is not
        self._length = 0  # of its body, if told
        self._ordinary = False  # it is none that reads differently the next time
        self._body_size = 0  # what earlier reads brought of the body,
        self._body_parts = 0  # kept in so many parts
        self._replay = b""  # see _parse_until_upgrade

    def use(self, router: Router) -> None:
        """Take the routes of the requests to come from another router."""
        self._router = router

    def feed(self, data: bytes) -> None:
        """Take the bytes that arrived. Never raises: a request that cannot be parsed is refused."""
        if self.partial:
            self._parse(data)
            return
        start = self._take_known(data)
        if start == len(data):
            return
        before = len(self.requests)
        self._parse(data[start:] if start else data)
        if not start and len(self.requests) == before + 1:
            self._remember(data)

    def _take_known(self, data: bytes) -> int:
        """Take whole requests whose heads have been seen before, and return where that ends.

        At the beginning of a request the parser has no past: the same bytes mean the same again.
        """
        known, requests, connection = self._router.known_heads, self.requests, self._connection
        last, head = self._last_head, self._last_known
        if known is not self._last_heads:
            last, head = b"", None  # the routes are others
            self._last_heads = known
        size = len(data)
        start = 0
        while start < size:
            if head is not None and data.startswith(last, start):
                body = start + len(last)
            else:
                body = data.find(END_OF_HEAD, start) + 4
                last = data[start:body]
                head = known.get(last)
                if head is None:
                    break
            target, length, headers = head
            end = body + length
            if end > size:
                break
            request = Request(connection, target, headers)
            if length and target.route.keeps_body:
                request.body = data[body:end]
            requests.append(request)
            start = end
        self._last_head, self._last_known = last if head is not None else b"", head
        return start

    def _remember(self, data: bytes) -> None:
        """These data brought the last request. If they are all of an ordinary one, its head is known now."""
        if self.partial or self.done or not self._ordinary:
            return
        body = data.find(END_OF_HEAD) + 4
        request = self.requests[-1]
        target = request.target
        # Make sure that `body` is where the parser saw it, whatever it tolerates before and after.
        if body + self._length == len(data) and data.startswith(target.method):
            self._router.remember(data[:body], target, self._length, request.headers)

    def _parse(self, data: bytes) -> None:
        self.completed = False
        rest = data
        while rest and not self.done:
            rest = self._parse_until_upgrade(rest)
        if not self.done and not self._between:
            self._left_incomplete(len(data))

    def _parse_until_upgrade(self, data: bytes) -> bytes:
        """Returns the bytes that are parsed next: none, in general."""
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            # The parser takes what follows for another protocol: tell a new one the same, less the wish.
            replay, self._replay = self._replay, b""
            self._request = None
            self._parser = HttpRequestParser(self)
            return replay + data[upgrade.args[0] :]
        except HttpParserError as error:
            if not self.done:
                if isinstance(error, HttpParserCallbackError):
                    logger.error("HTTP: a callback of the parser failed", exc_info=error.__context__)
                self._refuse_broken()
        return b""

    def end(self) -> None:
        """The client will send no more: a request that is cut short is refused."""
        if not self.done:
            if self.partial:
                self._refuse_broken()
            self.done = True
        self.unread = False

    def close(self) -> None:
        """Let go of what has come, of the parser, which holds our bound methods, and of the connection, which
        holds us. Nothing may be fed any more.
        """
        self.done = True
        self._parser = None  # type: ignore[assignment]
        self._connection = self._request = None
        self._replay = b""
        self._url.clear()
        self._headers.clear()
        self._body.clear()
        self.requests.clear()

    def refuse(self, response: Response) -> None:
        """Parse nothing more; this is the answer to the request under way."""
        request = self._request or Request(self._connection, NO_TARGET)
        request.connection_header = CLOSE
        request.response = response
        self._request = None
        self.partial = self.continue_due = False
        self._url.clear()
        self._headers.clear()
        self._body.clear()
        self.done = self.unread = True
        self.requests.append(request)

    def _refuse_broken(self) -> None:
        """NSQ calls it an internal error when a body that it wants cannot be read."""
        request = self._request
        wanted = request is not None and request.target.route.keeps_body
        self.refuse(INTERNAL_ERROR if wanted else MALFORMED)

    # Called by the parser.

    def on_headers_complete(self) -> None:
        uri = self._url[0] if len(self._url) == 1 else b"".join(self._url)
        self._url.clear()
        method = self._parser.get_method()
        target = self._router.resolve(method, uri)
        self._request = request = Request(self._connection, target, self._headers.copy())
        try:
            flags, self._length = read_head(request, self._headers, self._parser, self._limits)
        except Refused as refused:
            self.refuse(refused.response)
            raise
        self._ordinary = not flags and not request.connection_header
        if flags:
            if flags & WANTS_UPGRADE:
                self._replay = without_upgrade(request, self._headers, self._parser)
            self.continue_due = bool(flags & EXPECTS_CONTINUE)

    def on_message_complete(self) -> None:
        request = self._request
        self._headers.clear()
        if request is None or self._replay:
            return
        if self._body:
            self._take_body(request)
        self.continue_due = False
        if self.partial:
            self.partial = False
            self.taken = self._body_size = self._body_parts = 0
        self._request = None
        self._between.append(True)
        self.completed = True
        if not request.keep_alive:
            self.done = True
        self.requests.append(request)

    def _take_body(self, request: Request) -> None:
        body = self._body
        route = request.target.route
        if route.keeps_body:
            request.body = body[0] if len(body) == 1 else b"".join(body)
            if len(request.body) > route.max_body:
                self.refuse(route.too_big)
                raise Refused(route.too_big)
        body.clear()

    # Between reads.

    def _left_incomplete(self, size: int) -> None:
        """A read ended within a request: see what it has cost so far."""
        self.partial = True
        if not self.completed:
            self.taken += size
        if self._request is None:
            if self.taken > self._limits.max_head:
                self.refuse(HEAD_TOO_BIG)
            return
        route = self._request.target.route
        self._count_body(route.keeps_body)
        if self._body_size > route.max_body:
            self.refuse(route.too_big)
        elif self.taken > self._limits.max_head + CHUNK_OVERHEAD * route.max_body:
            self.refuse(MALFORMED)  # endless trailers or chunk extensions

    def _count_body(self, keep: bool) -> None:
        """Make one part of what this read brought: a million chunks of a byte are dear as a list."""
        body = self._body
        fresh = body[self._body_parts :]
        if fresh:
            part = fresh[0] if len(fresh) == 1 else b"".join(fresh)
            del body[self._body_parts :]
            self._body_size += len(part)
            if keep:
                body.append(part)
                self._body_parts += 1
