"""From an address of an nsqd to the URL of its HTTP API.

The response to IDENTIFY on the TCP port tells the HTTP port, if the nsqd is nsquark's; a stock nsqd does not
tell it. An nsqd that requires TLS refuses a request over plain HTTP, and tells its HTTPS port in the refusal.
"""

from __future__ import annotations

from contextlib import closing

from nsquark.client.connection.blocking_connection import BlockingConnection, ConnectionClosed
from nsquark.errors import ConnectionLost, ProtocolError
from nsquark.http.client import protocol as client_protocol
from nsquark.net.addresses import join_address, split_address

from .errors import BadResponse, RequestRefused, Unreachable
from .http import Access, fetch_json


def find_http_url(tcp_address: str, access: Access) -> str:
    """The URL of the HTTP API of the nsqd at host:port; empty if the nsqd does not tell it.

    IDENTIFY alone needs neither TLS nor a secret, so the nsqd tells its port even if it requires them.
    Raises Unreachable or BadResponse.
    """
    document = {"feature_negotiation": True, "user_agent": "nsquark-spark"}
    try:
        with closing(BlockingConnection(tcp_address, access.timeout)) as connection:
            http_port = connection.identify(document).http_port
    except ConnectionClosed as error:
        raise Unreachable(f"nsqd {tcp_address} cannot be reached: {error}") from None
    except (ConnectionLost, ProtocolError):
        raise BadResponse(f"nsqd {tcp_address}: no answer to IDENTIFY") from None
    except OSError as error:
        raise Unreachable(f"nsqd {tcp_address} cannot be reached: {error}") from None
    return f"http://{join_address(split_address(tcp_address)[0], http_port)}" if http_port else ""


def find_https_url(url: str, access: Access) -> str:
    """The HTTPS URL of an nsqd that refuses plain HTTP, and `url` itself for any other nsqd.

    Raises BadResponse, or Unreachable, which tells if the port speaks TLS and the URL does not say so.
    """
    if url.startswith("http:"):
        try:
            fetch_json(url, access, "/info")
        except RequestRefused as error:
            # Go's HTTP server and nsquark's say it in the same words, and a proxy in similar ones.
            if error.status == 400 and "HTTPS" in error.message:
                https = "https" + url.removeprefix("http")
                raise Unreachable(f"{url} cannot be reached: this port speaks TLS: write {https}") from None
            return https_url_in(error, url) or url
    return url


def https_url_in(error: RequestRefused, url: str) -> str:
    """The HTTPS URL that a refusal of plain HTTP at `url` tells; empty for any other refusal."""
    return client_protocol.https_url(url, error.status, error.details)
