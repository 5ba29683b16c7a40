"""Where the HTTP API of a daemon is: `host:port` as NSQ writes it, or `https://host:port` for TLS.

With `https://` no byte travels in the clear. So an nsqlookupd behind a proxy that speaks TLS can be asked,
and an nsqd without the detour over its plain port.
"""

from __future__ import annotations

from nsquark.net.addresses import split_address

_PORTS = {"http": 80, "https": 443}


def endpoint(address: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address. Raises ValueError, which says what is wrong with it."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        host, port = split_address(address)
        return "http", host, port
    scheme = scheme.lower()
    if scheme not in _PORTS:
        raise ValueError(f"address {address}: the scheme is neither http nor https")
    rest = rest.removesuffix("/")
    if any(letter in rest for letter in "/?#@"):
        raise ValueError(f"address {address}: only a host and a port may follow {scheme}://")
    bare = rest.startswith("[") and rest.endswith("]")  # an IPv6 address without a port
    if bare or ":" not in rest:
        rest = f"{rest}:{_PORTS[scheme]}"
    host, port = split_address(rest)
    if not host:
        raise ValueError(f"address {address}: missing host in address")
    return scheme, host, port


def is_secure(address: str) -> bool:
    """Whether requests to this address are sent over TLS from the first byte on."""
    return address[:8].lower() == "https://"
