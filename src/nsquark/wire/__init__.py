"""The V2 protocol without IO: what comes in, what goes out."""

from .frames import CLOSE_WAIT, HEARTBEAT, OK, pack_error, pack_response
from .identify import Identify, parse_identify
from .parser import (
    AUTH_BODY,
    DPUB_BODY,
    IDENTIFY_BODY,
    PUB_BODY,
    Body,
    CommandParser,
    Fins,
    Line,
    Mpub,
    Pubs,
)

__all__ = [
    "AUTH_BODY",
    "CLOSE_WAIT",
    "DPUB_BODY",
    "HEARTBEAT",
    "IDENTIFY_BODY",
    "OK",
    "PUB_BODY",
    "Body",
    "CommandParser",
    "Fins",
    "Identify",
    "Line",
    "Mpub",
    "Pubs",
    "pack_error",
    "pack_response",
    "parse_identify",
]
