"""nsqadmin as an ASGI application: base path, routes, errors as JSON, compression, a log of requests.

A request passes through one call and not through a stack of middleware, which would take about as long as
what is asked about one topic. Requests and responses are Starlette's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from time import perf_counter, time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nsquark.gotext import format_duration
from nsquark.net.addresses import join_address

from . import api
from .admin import Admin
from .api.answers import ApiError, error_response
from .cluster import NodeNotFound
from .compression import COMPRESS_FROM, compressed, takes_gzip
from .routing import Resource, Routes
from .upstream import UpstreamError

logger = logging.getLogger(__name__)


class Application:
    """All of nsqadmin. `more` resources (the pages) come after those of the API; none has the base path."""

    def __init__(self, admin: Admin, more: Sequence[Resource] = ()) -> None:
        self._prefix = admin.prefix
        self._routes = Routes([*api.routes(admin), *more])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        status = 0
        try:
            response = await self._answer(scope, receive)
            status = response.status_code
            if len(response.body) < COMPRESS_FROM:
                headers, body = response.raw_headers, bytes(response.body)
            else:
                headers, body = await compressed(response, takes_gzip(scope["headers"]))
            await send(
                {
                    "type": "http.response.start",
                    "status": status,
                    "headers": [*headers, (b"date", _date(int(time())))],
                }
            )
            await send({"type": "http.response.body", "body": body})
        except asyncio.CancelledError:
            # nsqadmin stops, and has hung up already. uvicorn would log an error.
            logger.debug("a request was given up")
        finally:
            if logger.isEnabledFor(logging.INFO):
                _log(scope, status, perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path: str = scope["path"]
        prefix = self._prefix
        if prefix:
            if path == prefix + "/":
                return Response(status_code=301, headers={"Location": prefix})
            if path != prefix and not path.startswith(prefix + "/"):
                return error_response(404, "NOT_FOUND")
            path = path[len(prefix) :] or "/"
        found = self._routes.find(path)
        if found is None:
            return _not_found(scope, path)
        resource, scope["path_params"] = found
        handler = resource.handlers.get(scope["method"])
        if handler is None:
            return _other_method(scope["method"], resource)
        try:
            return await handler(Request(scope, receive))
        except ApiError as error:
            return error_response(error.status, error.code, error.headers)
        except UpstreamError as error:
            logger.warning("%s", str(error).replace("\n", "; "))
            return error_response(502, f"UPSTREAM_ERROR: {error}")
        except NodeNotFound:
            return error_response(404, "NODE_NOT_FOUND")
        except Exception:
            logger.exception("%s %s failed", scope["method"], resource.path)
            return error_response(500, "INTERNAL_ERROR")


def _not_found(scope: Scope, path: str) -> Response:
    if not path.endswith("/") or not path.strip("/"):
        return error_response(404, "NOT_FOUND")
    # A Location that began with two slashes would lead to another host.
    path = "/" + scope["raw_path"].decode("latin-1").strip("/")
    query = scope["query_string"].decode("latin-1")
    location = f"{path}?{query}" if query else path
    return Response(status_code=301 if scope["method"] == "GET" else 308, headers={"Location": location})


def _other_method(method: str, resource: Resource) -> Response:
    headers = {"Allow": resource.allow}
    if method == "OPTIONS":
        return Response(headers=headers)
    return error_response(405, "METHOD_NOT_ALLOWED", headers)


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
