"""nsqd among its nsqlookupds: each hears of every topic and channel, and is asked for a new topic's channels.

Nobody waits for a lookupd: a publish to a new topic is answered as any other. Only the topic's messages stay
in its log, for `--http-client-request-timeout` at most, until the channels are there that lookupds know of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
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
        """Have exactly these: others are left, new ones called, those that stay do not notice."""
        if not addresses and not self._peers:
            return
        # Here, since who has no lookupd should not wait for these at the start.
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
        """What we say of ourselves."""
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
        if not self._peers or self._known_channels is None:
            return
        infos = [peer.connection.info for peer in self._peers.values() if peer.connection is not None]
        usable = [(info.broadcast_address, info.http_port) for info in infos if info is not None]
        usable = [(host, port) for host, port in usable if host and 0 < port < 1 << 16]
        if not usable:
            logger.error(
                "no available nsqlookupds to query for channels to pre-create for topic %s", topic.name
            )
            return
        topic.starting = True
        task = asyncio.get_running_loop().create_task(
            self._start(topic, self._known_channels.ask(usable, topic.name))
        )
        self._starting[topic] = task
        task.add_done_callback(lambda _: self._starting.pop(topic, None))

    async def _start(self, topic: Topic, known: Awaitable[list[str]]) -> None:
        channels = await known
        if not topic.exiting:
            for channel in channels:
                topic.channel(channel)
            topic.start()

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
