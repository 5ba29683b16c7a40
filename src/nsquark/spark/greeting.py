"""From an address of an nsqd to its HTTP API.

A TCP address is asked by an IDENTIFY on a connection of its own: NSQ's answer says nothing about HTTP,
nsquark's does. An HTTP address of an nsqd that requires TLS is good for asking where it has HTTPS.
"""

from __future__ import annotations

from contextlib import closing

from nsquark.client.addresses import join_address, split_address
from nsquark.client.connection.blocking_connection import BlockingConnection
from nsquark.errors import ConnectFailed, ProtocolError
from nsquark.http import client_protocol

from .errors import BadAnswer, Refused, Unreachable
from .http import Access, fetch

join = join_address


def http_url(address: str, access: Access) -> str:
    """Where the HTTP API of the nsqd at host:port is; empty if it does not say.

    Raises Unreachable or BadAnswer.
    """
    document = {"feature_negotiation": True, "user_agent": "nsquark-spark"}
    try:
        with closing(BlockingConnection(address, access.timeout)) as connection:
            response = connection.identify(document)
    except (ConnectFailed, ProtocolError):
        raise BadAnswer(f"nsqd {address}: no answer to IDENTIFY") from None
    except OSError as error:
        raise Unreachable(f"nsqd {address} cannot be reached: {error}") from None
    host, _ = split_address(address)
    return f"http://{join_address(host, response.http_port)}" if response.http_port else ""


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
    return client_protocol.https_url(url, error.status, error.details)
