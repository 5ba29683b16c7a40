"""The lease of a query on its channel: at each nsqd a request that stays open as long as the query lives.

When the process of the query ends, for whatever reason, its connections close, and the channel is free at
once. No clock decides that a query is dead.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time

from ..errors import ChannelInUse, RequestRefused, Unreachable
from ..http import Access, Exchange, Request
from .directory import Node

logger = logging.getLogger(__name__)

_HOLD_MS = 20_000
# How long the lease outlasts an answer: the time that the next request may take to arrive at the nsqd.
_LEASE_MS = 3_000
_RETRY_INTERVAL = 0.2
# How long a new query waits for a query that was stopped just now to let go. The old query's process may have
# to end first, and a query that stops between two requests holds the lease for _LEASE_MS.
_TAKE_TIMEOUT = 6.0
# How long an nsqd may be away before the lease is no longer renewed at this address.
_AWAY_TIMEOUT = 60.0


class ChannelLease:
    """The lease on one channel, of any number of topics at any number of nsqds."""

    def __init__(self, channel: str, access: Access) -> None:
        self._channel = channel
        self._access = access
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
        self._held: dict[tuple[str, Node], Exchange] = {}
        self._lost: ChannelInUse | None = None
        self._ended = threading.Event()

    def hold(self, topic: str, node: Node) -> None:
        """Take the lease at an nsqd, unless it is held, and renew it in a thread from then on.

        Raises ChannelInUse, Unreachable, RequestRefused.
        """
        self.check()
        if (topic, node) in self._held:
            return
        deadline = time.monotonic() + _TAKE_TIMEOUT
        exchange = Exchange(node.url, self._access)
        while True:
            try:
                self._renew(exchange, topic)
                break
            except RequestRefused as error:
                if error.status != 409:
                    raise
                if time.monotonic() > deadline:
                    raise self._in_use(topic, node, error) from None
            time.sleep(_RETRY_INTERVAL)
        self._held[topic, node] = exchange
        threading.Thread(target=self._keep, args=(exchange, topic, node), name="lease", daemon=True).start()

    def check(self) -> None:
        """Raise ChannelInUse if another query has taken the lease."""
        if self._lost is not None:
            raise self._lost

    def end(self) -> None:
        """Give the lease back at all nsqds."""
        self._ended.set()
        for exchange in list(self._held.values()):  # the threads take theirs out
            exchange.abort()

    def _renew(self, exchange: Exchange, topic: str, hold_ms: int = 0) -> None:
        query = {
            "topic": topic,
            "channel": self._channel,
            "owner": self._owner,
            "hold_ms": hold_ms,
            "lease_ms": _LEASE_MS,
        }
        exchange.fetch_json(Request("/channel/lease", query, "POST", hold=hold_ms / 1000))

    def _keep(self, exchange: Exchange, topic: str, node: Node) -> None:
        renewed = time.monotonic()
        while not self._ended.is_set():
            try:
                self._renew(exchange, topic, _HOLD_MS)
                renewed = time.monotonic()
            except Unreachable:
                if time.monotonic() - renewed > _AWAY_TIMEOUT:
                    self._held.pop((topic, node), None)
                    return
                # The nsqd may be restarting. Its channel then goes to the query that asks first.
                self._ended.wait(_RETRY_INTERVAL)
            except RequestRefused as error:
                if error.status == 409:
                    self._lost = self._in_use(topic, node, error)
                    return
                # The topic was deleted. If it comes back, the query takes the lease again.
                self._held.pop((topic, node), None)
                return

    def _in_use(self, topic: str, node: Node, error: RequestRefused) -> ChannelInUse:
        return ChannelInUse(
            f"option 'channel': {self._channel!r} of topic {topic!r} at nsqd {node.name} "
            f"is read by another query ({error.details.get('owner')})"
        )
