"""From an address of an nsqd to the URL of its HTTP API.

The response to IDENTIFY on the TCP port tells the HTTP port, if the nsqd is nsquark's; a stock nsqd does not
tell it. An nsqd that requires TLS refuses a request over plain HTTP, and tells its HTTPS port in the refusal.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from nsquark.errors import ConnectionLost
from nsquark.net.addresses import join_address, split_address

from .errors import BadResponse, RequestRefused, Unreachable
from .http import Access, fetch_json
from .v2_socket import ErrorFrame, V2Socket


def find_http_url(tcp_address: str, access: Access) -> str:
    """The URL of the HTTP API of the nsqd at host:port; empty if the nsqd does not tell it.

    Raises Unreachable or BadResponse.
    """
    try:
        with V2Socket(tcp_address, access.timeout) as connection:
            identity = connection.identify({"feature_negotiation": True, "user_agent": "nsquark-spark"})
    except (ConnectionLost, ErrorFrame, ValueError):
        raise BadResponse(f"nsqd {tcp_address}: no answer to IDENTIFY") from None
    except OSError as error:
        raise Unreachable(f"nsqd {tcp_address} cannot be reached: {error}") from None
    http_port = identity.get("http_port")
    return f"http://{join_address(split_address(tcp_address)[0], http_port)}" if http_port else ""


def find_https_url(url: str, access: Access) -> str:
    """The HTTPS URL of an nsqd that refuses plain HTTP, and `url` itself for any other nsqd.

    Raises Unreachable or BadResponse.
    """
    if url.startswith("http:"):
        try:
            fetch_json(url, access, "/info")
        except RequestRefused as error:
            return https_url_in(error, url) or url
    return url


def https_url_in(error: RequestRefused, url: str) -> str:
    """The HTTPS URL that a refusal of plain HTTP at `url` tells; empty for any other refusal."""
    port = error.details.get("https_port")
    if error.status != 403 or not isinstance(port, int) or port <= 0:
        return ""
    return f"https://{join_address(urlsplit(url).hostname or '', port)}"
