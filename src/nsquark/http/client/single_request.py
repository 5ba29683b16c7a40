"""The asyncio transport of the HTTP client: one request, one connection, a bounded answer, in time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

from nsquark.errors import ConnectFailed, ConnectionLost

from .protocol import (
    MAX_BODY,
    BadStatus,
    ClientResponse,
    ResponseParser,
    https_url,
    pack_request,
    parse_url,
    port_of,
    tls_context,
    without_query,
)

_READ = 65536


async def request(
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    connect_timeout: float | None = None,
    tls: ssl.SSLContext | None = None,
    max_body: int = MAX_BODY,
) -> ClientResponse:
    """Send one request. `timeout` is for all of it, `connect_timeout` for its first part.

    Raises ConnectFailed if there is no connection or no answer in time, and ConnectionLost if the answer is
    not whole.
    """
    parts = parse_url(url)
    shown = without_query(url)
    context = tls_context(parts, tls)
    try:
        async with asyncio.timeout(timeout):
            try:
                async with asyncio.timeout(connect_timeout):
                    reader, writer = await asyncio.open_connection(
                        parts.hostname, port_of(parts), ssl=context
                    )
            except TimeoutError:
                raise ConnectFailed(f"{shown}: no connection within {connect_timeout or timeout} s") from None
            except OSError as error:
                raise ConnectFailed(f"{shown}: {error.strerror or error}") from None
            try:
                writer.write(pack_request(method, parts, body, headers or {}))
                parser = ResponseParser(shown, max_body)
                while not parser.complete:
                    parser.feed(await reader.read(_READ))
                return parser.response()
            except ConnectionLost:
                raise
            except OSError as error:
                raise ConnectionLost(f"{shown}: {error}") from None
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise ConnectFailed(f"{shown}: no answer within {timeout} s") from None


async def ask(
    method: str,
    url: str,
    *,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    connect_timeout: float | None = None,
    tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    max_body: int = MAX_BODY,
) -> tuple[str, ClientResponse]:
    """The answer of a daemon, which is a 200, and the URL that gave it.

    A daemon that requires TLS is asked again over https. `tls` makes the context for https.
    Raises BadStatus, and what `request` raises.
    """
    while True:
        response = await request(
            method,
            url,
            body=body,
            headers=headers,
            timeout=timeout,
            connect_timeout=connect_timeout,
            tls=tls() if url.startswith("https:") else None,
            max_body=max_body,
        )
        if response.status == 200:
            return url, response
        error = BadStatus(without_query(url), response.status, response.body)
        url = https_url(url, error.status, error.details)
        if not url:
            raise error
