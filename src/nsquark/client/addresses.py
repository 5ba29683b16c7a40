"""How addresses are written: `host:port`, `[v6]:port`, alone or several."""

from __future__ import annotations

from collections.abc import Iterable

from nsquark.errors import UsageError

Addresses = str | Iterable[str]


def as_addresses(given: Addresses) -> tuple[str, ...]:
    """One or several addresses, each checked, without repetition."""
    addresses = (given,) if isinstance(given, str) else tuple(given)
    for address in addresses:
        split_address(address)
    return tuple(dict.fromkeys(addresses))


def split_address(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port. Raises UsageError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"address {address!r}: an IPv6 host stands in brackets")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"address {address!r} is not host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
