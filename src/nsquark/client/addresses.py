"""The addresses that a client connects to: `host:port` or `[v6]:port`, one or several."""

from __future__ import annotations

from collections.abc import Iterable

from nsquark.errors import UsageError
from nsquark.net import addresses
from nsquark.net.addresses import join_address

__all__ = ["Addresses", "as_addresses", "join_address", "split_address"]

Addresses = str | Iterable[str]


def as_addresses(given: Addresses) -> tuple[str, ...]:
    """One or several addresses, each checked, without repetition."""
    several = (given,) if isinstance(given, str) else tuple(given)
    for address in several:
        split_address(address)
    return tuple(dict.fromkeys(several))


def split_address(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port; neither may be left out. Raises UsageError."""
    try:
        host, port = addresses.split_address(address)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not host or not port:
        raise UsageError(f"address {address!r} is not host:port")
    return host, port
