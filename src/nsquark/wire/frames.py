"""The frames that nsqd sends: a size, a frame type, data."""

from __future__ import annotations

import struct

RESPONSE, ERROR, MESSAGE = range(3)
OK_DATA, CLOSE_WAIT_DATA, HEARTBEAT_DATA = b"OK", b"CLOSE_WAIT", b"_heartbeat_"
_HEAD = struct.Struct(">II")


def pack_frame(kind: int, data: bytes) -> bytes:
    return _HEAD.pack(4 + len(data), kind) + data


def pack_response(data: bytes) -> bytes:
    return pack_frame(RESPONSE, data)


def pack_error(data: bytes) -> bytes:
    return pack_frame(ERROR, data)


OK = pack_response(OK_DATA)
CLOSE_WAIT = pack_response(CLOSE_WAIT_DATA)
HEARTBEAT = pack_response(HEARTBEAT_DATA)
