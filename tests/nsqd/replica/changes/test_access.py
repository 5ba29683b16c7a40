"""Which peers may follow a node that has no secret."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsquark.http import HttpError
from nsquark.nsqd.options import Options
from nsquark.nsqd.replica.changes.access import ReplicaAccess


def request_from(*peer: object) -> Any:
    transport = SimpleNamespace(get_extra_info=lambda _name: peer)
    return cast(Any, SimpleNamespace(http_connection=SimpleNamespace(transport=transport)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_a_peer_on_this_machine_needs_no_secret(host: str) -> None:
    """The last one is what a listener for both IPv6 and IPv4 sees."""
    ReplicaAccess(Options()).check(request_from(host, 1, 0, 0))


@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_a_peer_elsewhere_needs_one(host: str) -> None:
    with pytest.raises(HttpError):
        ReplicaAccess(Options()).check(request_from(host, 1, 0, 0))
