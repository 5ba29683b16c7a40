"""Compressing an answer for a browser that takes gzip."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Iterable

from starlette.responses import Response

COMPRESS_FROM = 1400  # bytes: what is shorter fits into one packet
LEVEL = 4
IN_A_THREAD = 128 << 10  # bytes: to compress more would hold up the loop
_TYPES = ("text/", "application/json", "image/svg+xml")  # others are compressed already
_GZIP = re.compile(rb"(?:^|,)\s*(?:x-)?gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*(?:,|$))[^,]*)?(?:,|$)", re.IGNORECASE)

Headers = list[tuple[bytes, bytes]]


def takes_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the head of a request, as ASGI has it, asks for gzip."""
    return any(name == b"accept-encoding" and _GZIP.search(value) is not None for name, value in headers)


async def compressed(response: Response, wanted: bool) -> tuple[Headers, bytes]:
    """The head and the body of an answer whose body is `COMPRESS_FROM` bytes or longer."""
    body = bytes(response.body)
    headers = list(response.raw_headers)
    if not response.headers.get("content-type", "").startswith(_TYPES):
        return headers, body
    headers.append((b"vary", b"Accept-Encoding"))
    if not wanted:
        return headers, body
    body = await asyncio.to_thread(_gzip, body) if len(body) >= IN_A_THREAD else _gzip(body)
    headers = [header for header in headers if header[0] != b"content-length"]
    return [*headers, (b"content-encoding", b"gzip"), (b"content-length", b"%d" % len(body))], body


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()
