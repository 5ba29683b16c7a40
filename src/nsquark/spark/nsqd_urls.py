"""From an address of an nsqd to its HTTP API.

A TCP address is asked by an IDENTIFY on a connection of its own: NSQ's answer says nothing about HTTP,
nsquark's does. An HTTP address of an nsqd that requires TLS is good for asking where it has HTTPS.
"""

from __future__ import annotations

import json
import socket
import struct
from urllib.parse import urlsplit

from .errors import BadAnswer, Refused, Unreachable
from .http import Access, fetch

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


def https_url(url: str, access: Access) -> str:
    """The URL to use in place of one where HTTP may be refused: an nsqd that requires TLS says where.

    Raises Unreachable or BadAnswer.
    """
    if url.startswith("http:"):
        try:
            fetch(url, access, "/info")
        except Refused as error:
            return https_instead(url, error) or url
    return url


def https_instead(url: str, error: Refused) -> str:
    """Where to go on when plain HTTP is refused; empty if that is not what is wrong."""
    port = error.details.get("https_port")
    if error.status != 403 or not isinstance(port, int) or port <= 0:
        return ""
    return f"https://{join(urlsplit(url).hostname or '', port)}"


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed")
        data += more
    return data
