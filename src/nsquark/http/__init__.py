"""The small HTTP server that the daemons share: a router of plain functions over `httptools`.

`HttpServer` and `Limits` are loaded when they are first asked for: clients need neither them nor `httptools`.
"""

from .server.body import BodyWriter
from .server.message import (
    JSON_TYPE,
    TEXT_TYPE,
    HttpError,
    PendingResponse,
    Request,
    Response,
    Sent,
    pack_json,
    plain_text,
    v1_body,
    v1_empty,
    v1_error,
    v1_json,
    v1_stream,
    v1_text,
)
from .server.router import Answer, Handler, OneAnswer, Route, Router
from .server.slices import joined, slices

TYPE_CHECKING = False  # as type checkers know it, without loading `typing`
if TYPE_CHECKING:
    from .server.server import HttpServer, Limits

__all__ = [
    "JSON_TYPE",
    "TEXT_TYPE",
    "Answer",
    "BodyWriter",
    "Handler",
    "HttpError",
    "HttpServer",
    "Limits",
    "OneAnswer",
    "PendingResponse",
    "Request",
    "Response",
    "Route",
    "Router",
    "Sent",
    "joined",
    "pack_json",
    "plain_text",
    "slices",
    "v1_body",
    "v1_empty",
    "v1_error",
    "v1_json",
    "v1_stream",
    "v1_text",
]


def __getattr__(name: str) -> object:
    if name not in ("HttpServer", "Limits"):
        raise AttributeError(f"module 'nsquark.http' has no attribute {name!r}")
    from .server import server

    return getattr(server, name)
