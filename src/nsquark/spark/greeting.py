"""From the TCP address of an nsqd to its HTTP API: an IDENTIFY on a connection of its own.

NSQ's answer to IDENTIFY says nothing about HTTP; nsquark's does.
"""

from __future__ import annotations

import json
import socket
import struct

from .errors import BadAnswer, Unreachable
from .http import Access

_FRAME = struct.Struct(">II")
_MAX_ANSWER = 1 << 20


def http_url(address: str, access: Access) -> str:
    """Where the HTTP API of the nsqd at host:port is; empty if it does not say.

    Raises Unreachable or BadAnswer.
    """
    host, _, port = address.rpartition(":")
    asked = json.dumps({"feature_negotiation": True, "user_agent": "nsquark-spark"}).encode()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), access.timeout) as connection:
            connection.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(asked)) + asked)
            size, kind = _FRAME.unpack(_read(connection, _FRAME.size))
            if kind != 0 or not 4 <= size <= _MAX_ANSWER:
                raise BadAnswer(f"nsqd {address}: no answer to IDENTIFY")
            answer = json.loads(_read(connection, size - 4))
    except ValueError:
        raise BadAnswer(f"nsqd {address}: no answer to IDENTIFY") from None
    except OSError as error:
        raise Unreachable(f"nsqd {address} cannot be reached: {error}") from None
    http_port = answer.get("http_port") if isinstance(answer, dict) else None
    return f"http://{host}:{http_port}" if http_port else ""


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data
