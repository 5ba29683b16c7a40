"""Which peer may follow a node: one on this machine, one with the shared secret, one with a certificate."""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path

from nsquark.cli.flags import StartError
from nsquark.http import HttpError, Request
from nsquark.net.layered_transport import Layers
from nsquark.nsqd.options import Options

HEADER = "X-Nsquark-Replica-Secret"
LEAST = 16  # characters of a secret


def read_secret(options: Options) -> str:
    """The secret of --replica-secret-file; empty without one. Raises StartError."""
    if not options.replica_secret_file:
        return ""
    try:
        secret = Path(options.replica_secret_file).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise StartError(f"--replica-secret-file cannot be read - {error}") from None
    if len(secret) < LEAST or not secret.isprintable():
        raise StartError(f"--replica-secret-file needs at least {LEAST} printable characters")
    return secret


class ReplicaAccess:
    def __init__(self, options: Options) -> None:
        """Raises StartError."""
        self._secret = read_secret(options)
        self._verified = options.tls_client_auth_policy == "require-verify"

    def check(self, request: Request) -> None:
        """Raises HttpError unless the peer may read and follow everything."""
        transport = request.http_connection.transport if request.http_connection is not None else None
        tls = transport.tls if isinstance(transport, Layers) else None
        if tls is not None and self._verified:  # the handshake has verified a certificate
            return
        if self._secret:
            given = request.header(HEADER) or ""
            if not hmac.compare_digest(given.encode("latin-1", "replace"), self._secret.encode()):
                raise HttpError(403, "REPLICA_SECRET_WRONG")
            return
        peer = transport.get_extra_info("peername") if transport is not None else None
        if not isinstance(peer, tuple):  # a unix socket
            return
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)  # of a listener for IPv6 and IPv4
        if not (mapped or address).is_loopback:
            raise HttpError(403, "REPLICA_SECRET_REQUIRED")
