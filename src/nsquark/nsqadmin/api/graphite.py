"""Graphite behind nsqadmin: `/render` passes pictures and data on, `/api/graphite` tells a rate."""

from __future__ import annotations

import base64
import json
import logging
import math
from urllib.parse import quote, unquote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from nsquark.errors import NsquarkError
from nsquark.http.client.protocol import ClientResponse, without_query
from nsquark.http.client.single_request import request as send

from ..options import Options
from .answers import ApiError, json_response

logger = logging.getLogger(__name__)

MAX_ANSWER = 32 << 20


class GraphiteApi:
    def __init__(self, options: Options) -> None:
        self._options = options

    async def rate(self, request: Request) -> Response:
        """Messages per second of the last interval, from graphite's data."""
        if request.query_params.get("metric") != "rate":
            raise ApiError(400, "INVALID_ARG_METRIC")
        target = request.query_params.get("target")
        if not target:
            raise ApiError(400, "INVALID_ARG_TARGET")
        interval = int(self._options.statsd_interval) or 1
        query = {
            "format": "json",
            "from": f"-{2 * interval}sec",
            "target": target,
            "until": f"-{interval}sec",
        }
        try:
            response = await self._ask(urlencode(query), {})
            value = _first_value(response)
        except (NsquarkError, ValueError) as error:
            logger.error("no rate from graphite - %s", error)
            raise ApiError(500, "INTERNAL_ERROR") from None
        return json_response({"rate": "N/A" if value < 0 else f"{value / interval:.2f}"})

    async def render(self, request: Request) -> Response:
        """Graphite's own answer. Its path is that of the graphite URL and `/render`."""
        headers = {}
        if request.client is not None:
            headers["X-Forwarded-For"] = request.client.host
        query = quote(request.scope["query_string"].decode("latin-1"), safe="%&=+,;:/?@!$'()*[]~-._")
        try:
            response = await self._ask(query, headers)
        except NsquarkError as error:
            logger.error("no answer from graphite - %s", error)
            raise ApiError(502, "UPSTREAM_ERROR: graphite does not answer") from None
        passed = {
            name: value
            for name, value in response.headers.items()
            if name in ("content-type", "cache-control", "expires", "last-modified", "etag")
        }
        # Whatever graphite sends, this origin runs nothing of it.
        passed["content-security-policy"] = "sandbox"
        passed["x-content-type-options"] = "nosniff"
        return Response(response.body, response.status, passed)

    async def _ask(self, query: str, headers: dict[str, str]) -> ClientResponse:
        parts = urlsplit(self._options.graphite_url)
        if parts.username:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
        url = parts._replace(
            netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/") + "/render", query=query
        ).geturl()
        response = await send(
            "GET",
            url,
            headers=headers,
            timeout=self._options.http_client_request_timeout,
            connect_timeout=self._options.http_client_connect_timeout,
            max_body=MAX_ANSWER,
        )
        logger.debug("graphite %s: %d", without_query(url), response.status)
        return response


def _first_value(response: ClientResponse) -> float:
    """The first datapoint of the first series. Raises ValueError."""
    if response.status != 200:
        raise ValueError(f"graphite answered {response.status}")
    try:
        value = json.loads(response.body)[0]["datapoints"][0][0]
    except (KeyError, IndexError, TypeError, RecursionError):
        raise ValueError("graphite's answer holds no datapoint") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("graphite has no value for the interval")
    return value
