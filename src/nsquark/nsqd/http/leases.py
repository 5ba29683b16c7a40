"""`/channel/lease`: one reader of the log at a time for a channel.

A reader of the log is no client of its channel, so nothing keeps two readers from committing over each
other's heads. A reader that must be alone takes a lease under a name of its own. The lease lasts while a
request of its owner is held open, and `lease_ms` longer. When the connection of a held request closes, the
lease is free at once.
"""

from __future__ import annotations

import time

from nsquark.http import HttpError, Request, Response, v1_json
from nsquark.nsqd.broker import Broker
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic

from .arguments import number, topic_and_channel_name

LEASE_MS = 10_000  # how long a lease lasts after the last request of its owner, unless the request says less
LONGEST_HOLD_MS = 60_000
MAX_OWNER = 200  # characters


class Lease:
    __slots__ = ("held", "owner", "reads_until", "until")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.held = 0  # requests that are open
        self.until = 0.0
        self.reads_until = 0.0  # the time of the requests that are held, and the lease after it


class LeaseApi:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[tuple[str, str], Lease] = {}

    async def lease(self, request: Request) -> Response:
        """Take or prolong a lease for `lease_ms`. With `hold_ms` the answer comes after that time."""
        topic, channel = topic_and_channel_name(self._broker, request)
        owner = request.parameter("owner")
        if not (0 < len(owner) <= MAX_OWNER and owner.isprintable()):
            raise HttpError(400, "INVALID_ARG_OWNER")
        hold_ms = number(request, "hold_ms", 0, LONGEST_HOLD_MS)
        lease_ms = number(request, "lease_ms", LEASE_MS, LEASE_MS)
        key = topic.name, channel
        lease = self._take(key, owner, lease_ms / 1000)
        lease.reads_until = max(lease.reads_until, time.monotonic() + (hold_ms + lease_ms) / 1000)
        self._tell(topic, channel)
        if hold_ms:
            lease.held += 1
            try:
                gone = await request.wait_until_gone(hold_ms / 1000)
            finally:
                lease.held -= 1
            lease.until = time.monotonic() + lease_ms / 1000
            if gone and not lease.held and self._leases.get(key) is lease:
                del self._leases[key]
                if channel in topic.channels:
                    topic.channels[channel].readership.left(topic.monotonic())
        return v1_json({"channel_name": channel, "owner": owner, "lease_ms": lease_ms})

    def _tell(self, topic: Topic, name: str) -> None:
        """Have the channel know that it is read, if it is there. A reader takes the lease before it is."""
        if name in topic.channels:
            self.tell(topic.channels[name])

    def tell(self, channel: Channel) -> None:
        """Have a channel know until when the owner of its lease reads it, if it has one."""
        lease = self._leases.get((channel.topic.name, channel.name))
        left = lease.reads_until - time.monotonic() if lease is not None else 0.0
        if left > 0:
            channel.read_for(round(left * 1e9))

    def _take(self, key: tuple[str, str], owner: str, seconds: float) -> Lease:
        """Raises HttpError (409) if another owner has the lease."""
        now = time.monotonic()
        for each in [key for key, lease in self._leases.items() if not lease.held and lease.until <= now]:
            del self._leases[each]
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = Lease(owner)
        elif lease.owner != owner:
            raise HttpError(409, "CHANNEL_LEASED", {"owner": lease.owner})
        lease.until = now + seconds
        return lease
