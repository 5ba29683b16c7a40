"""Asking nsqds and nsqlookupds: one client, deadlines, TLS, a secret; and what failed."""

from nsquark.http.client.pool import BegunRequest

from .addresses import endpoint
from .client import Daemon, Upstream, nsqd, nsqlookupd
from .failures import Failure, Found, UpstreamError, warning

__all__ = [
    "BegunRequest",
    "Daemon",
    "Failure",
    "Found",
    "Upstream",
    "UpstreamError",
    "endpoint",
    "nsqd",
    "nsqlookupd",
    "warning",
]
