"""The documents of IDENTIFY: the client's, read as strictly as NSQ reads it, and the answer of nsqd."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from nsquark.errors import BadBody

_INT64 = 1 << 63
_INT32 = 1 << 31


@dataclass(slots=True)
class Identify:
    """The document of a client's IDENTIFY. Times are in milliseconds, as on the wire; 0 means absent."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval: int = 0
    output_buffer_timeout: int = 0
    output_buffer_size: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(slots=True)
class IdentifyResponse:
    """The answer of nsqd to IDENTIFY. The defaults stand for an nsqd that does not negotiate."""

    max_rdy_count: int = 2500
    version: str = ""
    max_msg_timeout: int = 900_000  # ms
    msg_timeout: int = 60_000  # ms
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 16384
    output_buffer_timeout: int = 250  # ms
    # nsquark alone tells these; 0 is untold.
    http_port: int = 0
    max_msg_size: int = 0
    max_body_size: int = 0


def parse_identify_response(body: bytes) -> IdentifyResponse:
    """The answer of nsqd to IDENTIFY. An nsqd that does not negotiate answers `OK`. Raises ValueError."""
    response = IdentifyResponse()
    if not body.startswith(b"{"):
        return response
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer to IDENTIFY is no JSON") from None
    for name, kind in _kinds(IdentifyResponse).items():
        value = document.get(name)
        if value is not None:
            if type(value) is not kind:
                raise ValueError(f"{name} {value!r} in the answer to IDENTIFY")
            setattr(response, name, value)
    return response


_DocumentT = TypeVar("_DocumentT")


def parse_identify(body: bytes) -> Identify:
    """Raises BadBody unless it is a JSON object (or null) whose known fields have their types."""
    return parse_document(body, Identify)


def parse_document(body: bytes, kind: type[_DocumentT]) -> _DocumentT:
    """The fields of a dataclass from the JSON of an IDENTIFY, to nsqd or to nsqlookupd. Raises BadBody."""
    known = _kinds(kind)
    try:
        document = json.loads(
            body.decode("utf-8", "replace"), parse_constant=_refuse, object_pairs_hook=_Pairs
        )
        if document is None:
            document = _Pairs()
        if type(document) is not _Pairs:
            raise ValueError("not an object")
        found = kind()
        for key, value in document:
            name = key.lower()
            if name in known and value is not None:
                setattr(found, name, _checked(name, value, known[name]))
    except (ValueError, RecursionError):
        raise BadBody("IDENTIFY failed to decode JSON body") from None
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object with all of its keys: of equal ones the last value counts, and each must have its type."""


def _kinds(kind: Any) -> dict[str, Any]:
    return {field.name: type(field.default) for field in fields(kind)}


def _refuse(_: str) -> Any:
    raise ValueError("NaN and Infinity are not JSON")


def _checked(name: str, value: Any, kind: Any) -> Any:
    # bool is an int in Python and is not one in JSON, hence type() and not isinstance()
    if type(value) is not kind:
        raise ValueError(f"{name} is not {kind.__name__}")
    if kind is int:
        limit = _INT32 if name == "sample_rate" else _INT64
        if not -limit <= value < limit:
            raise ValueError(f"{name} is out of range")
    if kind is str:
        # half a surrogate pair, which only an escape can bring, cannot be sent on
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value
