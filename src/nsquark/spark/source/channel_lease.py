"""A query's hold on its channel: at each nsqd a request that stays open for as long as the query lives.

When the process of the query dies, however it dies, its connections close, and the channel is free at once.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time

from ..errors import ChannelInUse, Refused, Unreachable
from ..http import Access, Exchange
from .directory import Node

logger = logging.getLogger(__name__)

_HOLD_MS = 20_000
_RETRY = 0.2
# How long the last process of a query that was stopped just now may take to be gone.
_PATIENCE = 5.0
# How long an nsqd may be away before nobody waits for it at this address.
_GIVE_UP = 60.0


class Lease:
    """For one channel at any number of nsqds."""

    def __init__(self, channel: str, access: Access) -> None:
        self._channel = channel
        self._access = access
        self._owner = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(8)}"
        self._held: dict[tuple[str, Node], Exchange] = {}
        self._lost: ChannelInUse | None = None
        self._ended = threading.Event()

    def hold(self, topic: str, node: Node) -> None:
        """Take it, if it is not held yet, and keep it. Raises ChannelInUse, Unreachable, Refused."""
        self.check()
        if (topic, node) in self._held:
            return
        deadline = time.monotonic() + _PATIENCE
        exchange = Exchange(node.url, self._access)
        while True:
            try:
                self._ask(exchange, topic)
                break
            except Refused as error:
                if error.status != 409:
                    raise
                if time.monotonic() > deadline:
                    raise self._in_use(topic, node, error) from None
            time.sleep(_RETRY)
        self._held[topic, node] = exchange
        threading.Thread(target=self._keep, args=(exchange, topic, node), name="lease", daemon=True).start()

    def check(self) -> None:
        """Raises ChannelInUse if another query has taken it."""
        if self._lost is not None:
            raise self._lost

    def end(self) -> None:
        """Let go of it."""
        self._ended.set()
        for exchange in self._held.values():
            exchange.abort()

    def _ask(self, exchange: Exchange, topic: str, hold_ms: int = 0) -> None:
        query = {"topic": topic, "channel": self._channel, "owner": self._owner, "hold_ms": hold_ms}
        exchange.fetch("/channel/lease", query, "POST", hold_ms / 1000)

    def _keep(self, exchange: Exchange, topic: str, node: Node) -> None:
        heard = time.monotonic()
        while not self._ended.is_set():
            try:
                self._ask(exchange, topic, _HOLD_MS)
                heard = time.monotonic()
            except Unreachable:
                if time.monotonic() - heard > _GIVE_UP:
                    self._held.pop((topic, node), None)
                    return
                self._ended.wait(_RETRY)  # it may restart; who comes first then has it
            except Refused as error:
                if error.status == 409:
                    self._lost = self._in_use(topic, node, error)
                    return
                # the topic is gone; should it come back, it is held again
                self._held.pop((topic, node), None)
                return

    def _in_use(self, topic: str, node: Node, error: Refused) -> ChannelInUse:
        return ChannelInUse(
            f"option 'channel': {self._channel!r} of topic {topic!r} at nsqd {node.name} "
            f"is read by another query ({error.details.get('owner')})"
        )
