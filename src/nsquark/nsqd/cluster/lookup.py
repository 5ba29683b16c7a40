"""nsqd among its nsqlookupds: each hears of every topic and channel, and is asked for a new topic's channels.

No client waits for a lookupd: a publish to a new topic is answered like any other. The topic's messages stay
in its log until it has the channels that lookupds know of, for `--http-client-request-timeout` at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsquark.http import pack_json
from nsquark.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsquark.nsqd.broker import Broker
    from nsquark.nsqd.core.topic import Topic

    from .first_channels import KnownChannels
    from .lookup_connection import LookupConnection
    from .lookup_peer import LookupPeer

logger = logging.getLogger(__name__)


class Lookup:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers: dict[str, LookupPeer] = {}
        self._known_channels: KnownChannels | None = None
        self._starting: dict[Topic, asyncio.Task[None]] = {}

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Have exactly these lookupds: leave the others, connect to new ones, keep the rest as they are."""
        if not addresses and not self._peers:
            return
        # Imported here: an nsqd without lookupds need not load these at its start.
        from .first_channels import KnownChannels
        from .lookup_peer import LookupPeer

        if self._known_channels is None:
            self._known_channels = KnownChannels(self._broker.options, self._broker.certificates)
        for address in [each for each in self._peers if each not in addresses]:
            logger.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).close()
        for address in dict.fromkeys(addresses):
            if address not in self._peers:
                self._peers[address] = LookupPeer(address, self._connection)

    def _connection(self, address: str) -> LookupConnection:
        from .lookup_connection import LookupConnection

        broker = self._broker
        return LookupConnection(address, self._document(), broker.topics, broker.options.max_body_size)

    def _document(self) -> bytes:
        """The document of our IDENTIFY."""
        options = self._broker.options
        document = {
            "broadcast_address": options.broadcast_address,
            "hostname": self._broker.hostname,
            "http_port": options.broadcast_http_port,
            "tcp_port": options.broadcast_tcp_port,
            "version": NSQ_VERSION,
        }
        if options.topology_region or options.topology_zone:
            document |= {
                "topology_region": options.topology_region,
                "topology_zone": options.topology_zone,
            }
        return pack_json(document).encode("utf-8", "backslashreplace")

    def changed(self, topic: str, channel: str = "") -> None:
        """A topic or a channel has come or gone."""
        for peer in self._peers.values():
            peer.changed(topic, channel)

    def created(self, topic: Topic) -> None:
        """A new topic: hold its messages back until it has the channels that the lookupds know of."""
        self.changed(topic.name)
        if not self._undecided and not self._usable(topic):
            return
        topic.starting = True
        task = asyncio.get_running_loop().create_task(self._start(topic))
        self._starting[topic] = task
        task.add_done_callback(lambda _: self._starting.pop(topic, None))

    def _usable(self, topic: Topic) -> list[tuple[str, int]]:
        """Host and HTTP port of the lookupds that can be asked. Having none of several is logged."""
        infos = [peer.connection.info for peer in self._peers.values() if peer.connection is not None]
        usable = [(info.broadcast_address, info.http_port) for info in infos if info is not None]
        usable = [(host, port) for host, port in usable if host and 0 < port < 1 << 16]
        if self._peers and not usable:
            logger.error(
                "no available nsqlookupds to query for channels to pre-create for topic %s", topic.name
            )
        return usable

    async def _start(self, topic: Topic) -> None:
        # Right after nsqd's start, a lookupd that is about to answer may know channels of this topic.
        await self.settled()
        usable = self._usable(topic)
        channels: list[str] = []
        if usable and self._known_channels is not None:
            channels = await self._known_channels.ask(usable, topic.name)
        if not topic.exiting:
            for channel in channels:
                topic.channel(channel)
            topic.start()

    @property
    def _undecided(self) -> list[LookupPeer]:
        """The lookupds that have neither answered nor failed since they were configured."""
        return [peer for peer in self._peers.values() if not peer.settled.is_set()]

    async def settled(self) -> None:
        """Wait until each lookupd has answered or failed, for `--http-client-request-timeout` at most."""
        waiting = [asyncio.create_task(peer.settled.wait()) for peer in self._undecided]
        if not waiting:
            return
        try:
            await asyncio.wait(waiting, timeout=self._broker.options.http_client_request_timeout)
        finally:
            for each in waiting:
                each.cancel()

    async def started(self, topic: Topic) -> None:
        """Return when its messages flow."""
        task = self._starting.get(topic)
        if task is not None:
            await asyncio.wait([task])

    def close(self) -> None:
        """Leave all of them. They notice by themselves."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        for task in self._starting.values():
            task.cancel()
