"""Which function answers which request, and what NSQ's router says when none does.

Paths are static, or end in one `<name>` segment. A path that is nearly right (trailing slash, doubled slash,
letter case) is redirected, a wrong method is told the right ones, OPTIONS is answered for every path.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote

from ..query import parse_query, unescape
from .message import PendingResponse, Request, Response, plain_text, v1_error

Answer: TypeAlias = Response | PendingResponse | Awaitable[Response]
Handler: TypeAlias = Callable[[Request], Answer]
Guard: TypeAlias = Callable[[str, Handler], Handler]
Hold: TypeAlias = Callable[[str, str, Handler], Handler]

# The largest body for a route that takes none: it is read and thrown away, as Go does.
MAX_IGNORED_BODY = 256 * 1024
# Targets by URL are remembered: most clients send the same few again and again.
_CACHED_TARGETS = 2048
_LONGEST_CACHED_URI = 512
# So are whole heads, byte for byte.
_KNOWN_HEADS = 4096
_LONGEST_HEAD = 1024
_IN_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


class Route:
    """A handler and what is decided before it is called.

    `max_body` None: the route takes no body. `too_big` answers a longer one before it is read.
    """

    __slots__ = ("handler", "keeps_body", "logged", "max_body", "too_big")

    def __init__(
        self, handler: Handler, max_body: int | None, too_big: Response | None = None, logged: bool = True
    ) -> None:
        self.handler = handler
        self.keeps_body = max_body is not None
        self.max_body = MAX_IGNORED_BODY if max_body is None else max_body
        self.too_big = too_big or v1_error(413, "BODY_TOO_BIG")
        self.logged = logged


class Target:
    """A request line, understood: the route, and what the URL says to it. Shared between requests."""

    __slots__ = ("argument", "method", "path", "query", "route", "uri")

    def __init__(
        self,
        method: bytes,
        uri: bytes,
        route: Route,
        path: str,
        query: Mapping[str, str] | None,
        argument: str = "",
    ) -> None:
        self.method = method
        self.uri = uri
        self.route = route
        self.path = path
        self.query = query
        self.argument = argument


KnownHead: TypeAlias = tuple[Target, int, Mapping[bytes, bytes]]
"""The parts of a head: the target, the length of the body, the headers."""


def fixed_route(response: Response, logged: bool = True) -> Route:
    """A route that has one answer, whatever is sent to it."""
    return Route(lambda _request: response, None, too_big=response, logged=logged)


NOT_FOUND = fixed_route(v1_error(404, "NOT_FOUND"))
BAD_REQUEST = fixed_route(plain_text(400, "400 Bad Request"), logged=False)


class Router:
    """A table of routes. Build it once; `resolve` remembers what it found."""

    def __init__(self, guard: Guard | None = None, hold: Hold | None = None) -> None:
        """`guard` is given each route's `access` and handler, and gives the handler to use.

        `hold` is given the method, the path and the handler before that, and may hold its answers back.
        """
        self._guard = guard
        self._hold = hold
        self._static: dict[str, dict[str, Route]] = {}  # path → method → route
        self._prefixes: dict[str, dict[str, Route]] = {}  # path up to the argument → method → route
        self._resolve_cached = lru_cache(_CACHED_TARGETS)(self._resolve)
        self.known_heads: dict[bytes, KnownHead] = {}

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        max_body: int | None = None,
        too_big: str = "BODY_TOO_BIG",
        logged: bool = True,
        access: str = "",
    ) -> None:
        """Route `method path` to the handler; `/config/<opt>` gives it one segment as `request.argument`.

        With `max_body` the handler gets bodies up to that size, and longer ones are answered 413 `too_big`
        before they are read; without it a body is ignored. `access` tells the guard what a client must be
        allowed to do.
        """
        if self._hold is not None:
            handler = self._hold(method, path, handler)
        if self._guard is not None:
            handler = self._guard(access, handler)
        prefix, bracket, _ = path.partition("<")
        table = self._prefixes if bracket else self._static
        table.setdefault(prefix, {})[method] = Route(handler, max_body, v1_error(413, too_big), logged)
        self._forget()

    def listed(self) -> Iterator[tuple[str, str]]:
        """Every (method, path); a path that takes an argument ends before it."""
        for path, routes in (*self._static.items(), *self._prefixes.items()):
            yield from ((method, path) for method in routes)

    def _forget(self) -> None:
        self._resolve_cached.cache_clear()
        self._forget_heads()

    def _forget_heads(self) -> None:
        """Begin another collection of heads. The old one is emptied, as idle connections refer to it."""
        self.known_heads.clear()
        self.known_heads = {}

    def remember(self, head: bytes, target: Target, length: int, headers: Mapping[bytes, bytes]) -> None:
        """Next time, a request with exactly this head need not be parsed."""
        if len(head) <= _LONGEST_HEAD:
            if len(self.known_heads) >= _KNOWN_HEADS:
                self._forget_heads()
            self.known_heads[head] = (target, length, headers)

    def resolve(self, method: bytes, uri: bytes) -> Target:
        """Never fails: a path without a route gets a route that answers so."""
        return (self._resolve_cached if len(uri) <= _LONGEST_CACHED_URI else self._resolve)(method, uri)

    def _resolve(self, method_bytes: bytes, uri: bytes) -> Target:
        raw_path, _, raw_query = _origin_form(uri).partition(b"?")
        path = unescape(raw_path)
        query = parse_query(raw_query)
        if method_bytes == b"CONNECT":
            return Target(method_bytes, uri, BAD_REQUEST, "", query)
        method = method_bytes.decode("ascii")
        if path is None or not (path.startswith("/") or (path == "*" and method == "OPTIONS")):
            return Target(method_bytes, uri, BAD_REQUEST, "", query)
        routes, argument = self._find(path)
        if method in routes:
            return Target(method_bytes, uri, routes[method], path, query, argument)
        fallback = self._without_route(method, path, raw_query, routes)
        return Target(method_bytes, uri, fallback, path, query)

    def _find(self, path: str) -> tuple[dict[str, Route], str]:
        """The routes of exactly this path by method, and the argument in it."""
        routes = self._static.get(path)
        if routes is not None:
            return routes, ""
        prefix, argument = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
        if argument and prefix in self._prefixes:
            return self._prefixes[prefix], argument
        return {}, ""

    def _without_route(self, method: str, path: str, raw_query: bytes, routes: dict[str, Route]) -> Route:
        better = self._nearly(method, path)
        if better is not None:
            location = quote(better, safe="/") + ("?" + raw_query.decode("latin-1") if raw_query else "")
            return fixed_route(_redirect(method, location))
        allowed = set(routes)
        if path == "*":
            allowed.update(*self._static.values(), *self._prefixes.values())
        if not allowed:
            return NOT_FOUND
        allow = ("Allow", ", ".join(sorted(allowed | {"OPTIONS"})))
        if method == "OPTIONS":
            return fixed_route(Response(200, b"", (allow,)))
        return fixed_route(v1_error(405, "METHOD_NOT_ALLOWED", (allow,)))

    def _nearly(self, method: str, path: str) -> str | None:
        """The path of this method that was probably meant, as NSQ's router guesses it."""
        if path in ("/", "*"):
            return None
        clean = posixpath.normpath(re.sub("/+", "/", path))
        for known, routes in self._static.items():
            if method in routes and known.rstrip("/").lower() == clean.lower():
                return known
        at = clean.rfind("/") + 1
        for known, routes in self._prefixes.items():
            if method in routes and known.lower() == clean[:at].lower() and clean[at:]:
                return known + clean[at:]
        return None


def _redirect(method: str, location: str) -> Response:
    """As Go's net/http redirects: a GET is told where to go in HTML, too."""
    where = ("Location", location)
    if method != "GET":
        return Response(307, b"", (where,))  # and not 308, which older HTTP clients do not follow
    link = location.translate(_IN_HTML)
    page = f'<a href="{link}">Moved Permanently</a>.\n\n'
    return Response(301, page.encode("latin-1"), (("Content-Type", "text/html; charset=utf-8"), where))


class OneAnswer(Router):
    """Answers whatever is asked for with the same."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self._route = fixed_route(response)

    def _resolve(self, method_bytes: bytes, uri: bytes) -> Target:
        return Target(method_bytes, uri, self._route, "", None)


def _origin_form(uri: bytes) -> bytes:
    """The URI without scheme and host, if it came with them, as from a client that thinks us a proxy."""
    if uri.startswith(b"/"):
        return uri
    scheme, separator, rest = uri.partition(b"://")
    if not separator or not scheme.isalpha():
        return uri
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
