"""What nsqd sends: a size, a frame type, data."""

from __future__ import annotations

import struct

RESPONSE, ERROR, MESSAGE = range(3)
_HEAD = struct.Struct(">II")


def pack_frame(kind: int, data: bytes) -> bytes:
    return _HEAD.pack(4 + len(data), kind) + data


def pack_response(data: bytes) -> bytes:
    return pack_frame(RESPONSE, data)


def pack_error(data: bytes) -> bytes:
    return pack_frame(ERROR, data)


OK = pack_response(b"OK")
CLOSE_WAIT = pack_response(b"CLOSE_WAIT")
HEARTBEAT = pack_response(b"_heartbeat_")
