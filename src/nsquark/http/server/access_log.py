"""The line per request that NSQ logs."""

from __future__ import annotations

import logging
from time import perf_counter

from nsquark.gotext import format_duration

from .message import Request, Response

logger = logging.getLogger(__name__)


def is_enabled() -> bool:
    return logger.isEnabledFor(logging.INFO)


def log_request(request: Request, response: Response) -> None:
    """`<status> <METHOD> <uri> (<peer>) <elapsed>`, for a request whose `started` was taken."""
    logger.info(
        "%d %s %s (%s) %s",
        response.status,
        request.method,
        request.uri.decode("ascii", "backslashreplace"),
        request.peer,
        format_duration(round((perf_counter() - request.started) * 1e9)),
    )
