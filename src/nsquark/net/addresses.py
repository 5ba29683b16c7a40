"""`host:port` as Go reads and writes it: IPv6 hosts in brackets, ports by number or service name."""

from __future__ import annotations

import socket


def split_address(address: str) -> tuple[str, int]:
    """Host and port; the host is empty for any. Raises ValueError with Go's words."""
    host, port = split_off_port(address)
    if ":" in host and not address.startswith(f"[{host}]:"):
        raise ValueError(f"address {address}: too many colons in address")
    if not port:
        return host, 0
    if port.isascii() and port.isdigit():
        number = int(port) if len(port) < 8 else 1 << 16
    else:
        try:
            number = socket.getservbyname(port, "tcp")
        except (OSError, ValueError):
            raise ValueError(f"unknown port tcp/{port}") from None
    if number >= 1 << 16:
        raise ValueError(f"address {port}: invalid port")
    return host, number


def split_off_port(address: str) -> tuple[str, str]:
    """Host, without its brackets, and port as they are written. Raises ValueError where no port is."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        raise ValueError(f"address {address}: missing port in address")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port


def is_path(address: str) -> bool:
    """Whether an address to listen on is the path of a unix socket, not `host:port`."""
    _, colon, port = address.rpartition(":")
    return not colon or "/" in port


def join_address(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def name_of(socket_address: object) -> str:
    """A socket's own or its peer's address, as Go prints it; `@` for a unix socket without a name."""
    if isinstance(socket_address, tuple):
        return join_address(str(socket_address[0]), int(socket_address[1]))
    if isinstance(socket_address, bytes):  # the name of an abstract unix socket begins with a zero byte
        return socket_address.replace(b"\0", b"@", 1).decode("utf-8", "backslashreplace")
    return str(socket_address or "@")
