"""The small HTTP server that the daemons share: a router of plain functions over `httptools`."""

from nsquark.http.body import BodyWriter
from nsquark.http.message import (
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
from nsquark.http.router import Answer, Handler, OneAnswer, Route, Router
from nsquark.http.server import HttpServer, Limits
from nsquark.http.slices import joined, slices

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
