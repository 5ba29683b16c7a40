"""The messages in the body of a request, and their delay. Wrong ones raise HttpError."""

from __future__ import annotations

from nsquark import kernel
from nsquark.gotext import parse_int
from nsquark.http import HttpError, Request
from nsquark.kernel.pure import BAD_COUNT, COMPLETE, IN_COUNT, SHORT
from nsquark.nsqd.options import Options
from nsquark.wire import Mpub


def split_lines(body: bytes, options: Options) -> list[bytes]:
    """The messages of a text body: one a line, without the empty ones."""
    bodies = [line for line in body.split(b"\n") if line]
    if bodies and len(max(bodies, key=len)) > options.max_msg_size:
        raise HttpError(413, "MSG_TOO_BIG")
    return bodies


def parse_mpub(body: bytes, options: Options, *, exact: bool = False) -> Mpub:
    """The messages of a binary body. NSQ ignores what follows the last one; with `exact` nothing may."""
    status, stop, number, value = kernel.scan_mpub(
        body, 0, len(body), options.max_msg_size, options.max_body_size, 0, 0
    )
    if status == COMPLETE and (stop == len(body) or not exact):
        return Mpub(body, 0, number)
    no_count = status == BAD_COUNT or (status == SHORT and value == IN_COUNT)
    raise HttpError(413, "BAD_BODY" if no_count or status == COMPLETE else "BAD_MESSAGE")


def parse_defer_ms(request: Request, options: Options) -> int:
    """The parameter `defer`, 0 if it is missing."""
    text = request.query.get("defer")
    if text is None:
        return 0
    try:
        milliseconds = parse_int(text, 10)
    except ValueError:
        raise HttpError(400, "INVALID_DEFER") from None
    if not 0 <= milliseconds / 1000 <= options.max_req_timeout:
        raise HttpError(400, "INVALID_DEFER")
    return milliseconds
