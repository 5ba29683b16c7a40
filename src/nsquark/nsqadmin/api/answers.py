"""Answers of the API as NSQ lays them out, and what a route is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nsquark.http.message import JSON_TYPE, TEXT_TYPE, V1_HEADER
from nsquark.nsqadmin.fast_json import pack_json

Handler = Callable[[Request], Awaitable[Response]]

MAX_BODY = 1 << 20
BODY_TIMEOUT = 60.0
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))


class ApiError(HTTPException):
    """Answered as `{"message": code}` with this status."""

    def __init__(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, code, headers)


def json_response(document: object, status: int = 200) -> Response:
    return Response(pack_json(document), status, {"Content-Type": JSON_TYPE, **_v1()})


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    response = json_response({"message": message}, status)
    response.headers.update(headers or {})
    return response


def text_response(text: str, *, v1: bool = False) -> Response:
    """Text as it is. As a version 1 answer, no text has no type."""
    headers = {"Content-Type": TEXT_TYPE} if text or not v1 else {}
    return Response(text, headers={**headers, **(_v1() if v1 else {})})


def _v1() -> dict[str, str]:
    return dict([V1_HEADER])


class Resource:
    """A handler by method, as an ASGI application. Other methods are answered as NSQ answers them.

    Starlette would wrap a function once more for exceptions, which `application` handles for all routes.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._allow = {"Allow": ", ".join(sorted((*handlers, "OPTIONS")))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._handlers.get(method)
        if handler is not None:
            if method not in _SAFE and comes_from_elsewhere(request):
                raise ApiError(403, "CROSS_SITE_REQUEST")
            return await handler(request)
        if method == "OPTIONS":
            return Response(headers=self._allow)
        raise ApiError(405, "METHOD_NOT_ALLOWED", self._allow)


def resource(path: str, **handlers: Handler) -> Route:
    return Route(path, Resource(handlers), methods=_METHODS)


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that a page of another site has sent this request.

    Scripts say nothing of the kind and pass. A browser tells Sec-Fetch-Site over https and on localhost,
    Origin everywhere; a page can change neither.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return False
    try:
        host = urlsplit(origin).netloc.lower()
    except ValueError:
        return True
    # A proxy that rewrites Host says in X-Forwarded-Host what it was. Another site's page cannot set it.
    ours = {request.headers.get("host", "").lower(), request.headers.get("x-forwarded-host", "").lower()}
    return not host or host not in ours


async def read_body(request: Request) -> bytes | None:
    """The body; None if it is longer than a MiB. Raises ApiError if it does not come."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    return None
    except TimeoutError:
        raise ApiError(408, "REQUEST_TIMEOUT", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "unexpected EOF") from None
    return bytes(body)


async def read_fields(request: Request, *names: str) -> list[str]:
    """These texts of the JSON object in the body; empty where one is missing.

    Only the first JSON value is read, whatever its content type. Raises ApiError, which says what is wrong.
    """
    body = await read_body(request)
    if body is None:
        raise ApiError(413, "INVALID_BODY")
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise ApiError(400, "EOF")
    try:
        document: Any = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ApiError(400, "the body is no JSON object")
    fields = []
    for name in names:
        value = document.get(name)
        if value is not None and not isinstance(value, str):
            raise ApiError(400, f"{name} is no string")
        fields.append(value or "")
    return fields
