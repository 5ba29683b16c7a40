"""`/channel/lease`: one reader of the log at a time for a channel.

A reader of the log is no client of its channel, so nothing keeps two of them from committing over each
other's heads. Those who want that kept take a lease under a name of their own. It lasts while a request of
its owner is held open, and a little longer; when the connection of that request goes, it is free at once.
"""

from __future__ import annotations

import time

from nsquark.http import HttpError, Request, Response, v1_json
from nsquark.nsqd.broker import Broker

from .arguments import argument, number, topic_and_channel_name

LEASE = 10.0  # seconds after the last word of its owner
LONGEST_HOLD_MS = 60_000
MAX_OWNER = 200  # characters


class Lease:
    __slots__ = ("held", "owner", "until")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.held = 0  # requests that are open
        self.until = 0.0


class LeaseApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[tuple[str, str], Lease] = {}

    async def lease(self, request: Request) -> Response:
        """Take or prolong a lease. With `hold_ms` the answer comes after that time."""
        topic, channel = topic_and_channel_name(self._broker, request)
        owner = argument(request, "owner")
        if not (0 < len(owner) <= MAX_OWNER and owner.isprintable()):
            raise HttpError(400, "INVALID_ARG_OWNER")
        hold_ms = number(request, "hold_ms", 0, LONGEST_HOLD_MS)
        key = topic.name, channel
        lease = self._take(key, owner)
        if hold_ms:
            lease.held += 1
            try:
                gone = await request.wait_until_gone(hold_ms / 1000)
            finally:
                lease.held -= 1
            lease.until = time.monotonic() + LEASE
            if gone and not lease.held and self._leases.get(key) is lease:
                del self._leases[key]
        return v1_json({"channel_name": channel, "owner": owner, "lease_ms": int(LEASE * 1000)})

    def _take(self, key: tuple[str, str], owner: str) -> Lease:
        """Raises HttpError (409) if another has it."""
        now = time.monotonic()
        for each in [key for key, lease in self._leases.items() if not lease.held and lease.until <= now]:
            del self._leases[each]
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = Lease(owner)
        elif lease.owner != owner:
            raise HttpError(409, "CHANNEL_LEASED", {"owner": lease.owner})
        lease.until = now + LEASE
        return lease
