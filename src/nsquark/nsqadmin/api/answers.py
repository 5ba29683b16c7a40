"""Answers of the API as NSQ lays them out, and what is read of a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nsquark.http.server.message import JSON_TYPE, TEXT_TYPE, V1_HEADER

from ..fast_json import pack_json
from ..routing import Handler, Resource

MAX_BODY = 1 << 20
BODY_TIMEOUT = 60.0
_V1 = dict([V1_HEADER])
_JSON_HEADERS = {"Content-Type": JSON_TYPE, **_V1}


class ApiError(Exception):
    """Answered as `{"message": code}` with this status."""

    def __init__(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.headers = headers or {}


def json_response(document: object, status: int = 200) -> Response:
    return Response(pack_json(document), status, _JSON_HEADERS)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    response = json_response({"message": message}, status)
    response.headers.update(headers or {})
    return response


def text_response(text: str, *, v1: bool = False) -> Response:
    """Text as it is. As a version 1 answer, no text has no type."""
    headers = {"Content-Type": TEXT_TYPE} if text or not v1 else {}
    return Response(text, headers={**headers, **(_V1 if v1 else {})})


def resource(path: str, **handlers: Handler) -> Resource:
    """A resource whose changes no page of another site may ask for."""
    return Resource(
        path, {method: each if method == "GET" else _from_here(each) for method, each in handlers.items()}
    )


def _from_here(handler: Handler) -> Handler:
    async def guarded(request: Request) -> Response:
        if comes_from_elsewhere(request):
            raise ApiError(403, "CROSS_SITE_REQUEST")
        return await handler(request)

    return guarded


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

    Only the first JSON value is read, whatever its content type. Keys may be in any case, as in NSQ. Raises
    ApiError, which says what is wrong.
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
    given = {key.lower(): value for key, value in document.items()}
    fields = []
    for name in names:
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise ApiError(400, f"{name} is no string")
        fields.append(value or "")
    return fields
