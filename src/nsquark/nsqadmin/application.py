"""The Starlette application: routes under the base path, errors as JSON, compression, a log of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from time import perf_counter, time
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from nsquark.gotext import format_duration
from nsquark.net.addresses import join_address

from . import api
from .admin import Admin
from .api.answers import error_response
from .cluster import NodeNotFound
from .upstream import UpstreamError

logger = logging.getLogger(__name__)

COMPRESS_FROM = 1400  # bytes: what is shorter fits into one packet
COMPRESSION = 4


def application(admin: Admin, more_routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """All of nsqadmin. `more_routes` (the pages) come after those of the API, without the base path too."""
    handlers: dict[type[Exception], object] = {
        HTTPException: _http_error,
        UpstreamError: _upstream_error,
        NodeNotFound: _node_not_found,
        Exception: _internal_error,
    }
    app = Starlette(
        routes=[*api.routes(admin), *more_routes],
        middleware=[Middleware(GZipMiddleware, minimum_size=COMPRESS_FROM, compresslevel=COMPRESSION)],
        exception_handlers=cast("dict[type[Exception], ExceptionHandler]", handlers),
    )
    app.router.redirect_slashes = False
    return AccessLog(BasePath(app, admin.prefix))


# ---- errors


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404 and error.detail == "Not Found":
        path = request.scope["path"]
        if path.endswith("/") and path.strip("/"):
            return _without_slash(request)
        return error_response(404, "NOT_FOUND")
    message = "METHOD_NOT_ALLOWED" if error.status_code == 405 else error.detail
    return error_response(error.status_code, message, dict(error.headers or {}))


def _without_slash(request: Request) -> Response:
    # A Location that began with two slashes would lead to another host.
    path = "/" + request.scope["raw_path"].decode("latin-1").strip("/")
    query = request.scope["query_string"].decode("latin-1")
    location = f"{path}?{query}" if query else path
    return Response(status_code=301 if request.method == "GET" else 308, headers={"Location": location})


async def _upstream_error(_request: Request, error: UpstreamError) -> Response:
    logger.warning("%s", str(error).replace("\n", "; "))
    return error_response(502, f"UPSTREAM_ERROR: {error}")


async def _node_not_found(_request: Request, _error: NodeNotFound) -> Response:
    return error_response(404, "NODE_NOT_FOUND")


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "INTERNAL_ERROR")  # uvicorn logs what it was


# ---- around the application


class BasePath:
    """Serves the application under a prefix, and nothing outside of it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = self._prefix
        if scope["type"] != "http" or not prefix:
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == prefix + "/":
            response = Response(status_code=301, headers={"Location": prefix})
            await response(scope, receive, send)
        elif path == prefix:
            await self._app({**scope, "root_path": prefix, "path": prefix + "/"}, receive, send)
        elif path.startswith(prefix + "/"):
            await self._app({**scope, "root_path": prefix}, receive, send)
        else:
            await error_response(404, "NOT_FOUND")(scope, receive, send)


class AccessLog:
    """Logs a line per request as NSQ does, and dates every answer. The outermost part of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"date", _now())]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:
            # nsqadmin stops, and has hung up already. uvicorn would log an error.
            logger.debug("a request was given up")
        finally:
            if logger.isEnabledFor(logging.INFO):
                _log(scope, status, perf_counter() - started)


def _now() -> bytes:
    return _date(int(time()))


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _log(scope: Scope, status: int, elapsed: float) -> None:
    uri = scope.get("raw_path", b"") + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    logger.info(
        "%d %s %s (%s) %s",
        status,
        scope["method"],
        uri.decode("ascii", "backslashreplace"),
        join_address(*scope["client"]) if scope["client"] else "@",
        format_duration(round(elapsed * 1e9)),
    )
