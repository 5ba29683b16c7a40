"""The directory: which names there are, which nsqds produce them, and which connections are told of changes.

A registration is a topic or a channel and its producers; it may have none, and then is a name that is known.
A producer is a connection, not an address. Nothing is forgotten by time: a producer that is silent for too
long, or has a tombstone, is only left out of answers.

Times are nanoseconds of a clock that the caller reads: all methods take `now`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from nsquark.errors import NsquarkError
from nsquark.http import pack_json
from nsquark.names import is_ephemeral
from nsquark.net.addresses import join_address
from nsquark.wire import PeerInfo

NEVER = 0  # no tombstone


class DirectoryFull(NsquarkError):
    """There is no room, and no producer that could be removed to make room."""


class Registration:
    """A topic, or a channel of a topic, and since when its producers are tombstoned (NEVER: they are not)."""

    __slots__ = ("channel", "producers", "topic")

    def __init__(self, topic: str, channel: str = "") -> None:
        self.topic = topic
        self.channel = channel
        self.producers: dict[Peer, int] = {}


class Peer:
    """An nsqd that has identified itself: one for each connection."""

    __slots__ = ("_named", "channels", "id", "info", "last_update", "packed", "tombstoned", "topics")

    def __init__(self, peer_id: str, info: PeerInfo, now: int) -> None:
        """`peer_id` is the address that the connection comes from."""
        self.id = peer_id
        self.info = info
        self.last_update = now
        self.topics: set[Registration] = set()
        self.channels: set[Registration] = set()
        self.tombstoned: set[Registration] = set()  # those of its topics that ever were
        # It never changes, and is asked for all the time: the fields of a producer, but for the braces.
        self.packed = pack_json(
            {
                "remote_address": peer_id,
                "hostname": info.hostname,
                "broadcast_address": info.broadcast_address,
                "tcp_port": info.tcp_port,
                "http_port": info.http_port,
                "version": info.version,
            }
        )[1:-1]
        self._named: tuple[list[Registration], str] | None = None

    def named_topics(self) -> tuple[list[Registration], str]:
        """Its topics in order, and their names as JSON; remembered until they change."""
        if self._named is None:
            topics = sorted(self.topics, key=attrgetter("topic"))
            self._named = topics, pack_json([each.topic for each in topics])
        return self._named

    def changing(self, registration: Registration) -> set[Registration]:
        """Where it keeps this registration, which is about to come or go."""
        if registration.channel:
            return self.channels
        self._named = None
        self.tombstoned.discard(registration)
        return self.topics

    def is_node(self, node: str) -> bool:
        """Whether `host:http_port` means it. NSQ has IPv6 without brackets here, nsqadmin sends them."""
        host, port = self.info.broadcast_address, self.info.http_port
        return node in (f"{host}:{port}", join_address(host, port))


class Registrations:
    """At most `limit` names and producers. What has no room makes names without a producer be forgotten,
    those first that lost theirs first; if there are none, it is refused.
    """

    def __init__(self, limit: int, limit_per_peer: int) -> None:
        self.peers: dict[Peer, None] = {}
        self.topics: dict[str, Registration] = {}
        self.channels: dict[str, dict[str, Registration]] = {}  # of a topic, registered or not
        self.size = 0  # names and producers
        self._limit = limit
        self._limit_per_peer = limit_per_peer
        self._empty: dict[Registration, None] = {}
        self._topic_names: list[str] | None = None

    # ---- names

    def topic_names(self) -> list[str]:
        """In order; remembered until a topic comes or goes."""
        if self._topic_names is None:
            self._topic_names = sorted(self.topics)
        return self._topic_names

    def add_topic(self, topic: str) -> Registration:
        """Raises DirectoryFull."""
        found = self.topics.get(topic)
        if found is None:
            self._make_room()
            found = self.topics[topic] = Registration(topic)
            self._topic_names = None
            self._empty[found] = None
            self.size += 1
        return found

    def add_channel(self, topic: str, channel: str) -> Registration:
        """The channel, and the topic with it. Raises DirectoryFull."""
        known = self.add_topic(topic)
        found = self.channels.get(topic, {}).get(channel)
        if found is None:
            self._make_room(known)
            # the topic's own name, so that it is kept once
            found = Registration(known.topic, channel)
            self.channels.setdefault(known.topic, {})[channel] = found
            self._empty[found] = None
            self.size += 1
        return found

    def remove(self, registration: Registration) -> None:
        """Forget the name, with its producers."""
        topic, channel = registration.topic, registration.channel
        if channel:
            channels = self.channels[topic]
            del channels[channel]
            if not channels:
                del self.channels[topic]
        else:
            del self.topics[topic]
            self._topic_names = None
        for peer in registration.producers:
            peer.changing(registration).discard(registration)
        self.size -= 1 + len(registration.producers)
        self._empty.pop(registration, None)

    def remove_topic(self, topic: str) -> list[Registration]:
        """Forget a topic and its channels, if they are known; those that were."""
        found = self.channels_of(topic)
        if topic in self.topics:
            found.append(self.topics[topic])
        for registration in found:
            self.remove(registration)
        return found

    def channels_of(self, topic: str) -> list[Registration]:
        return list(self.channels.get(topic, {}).values())

    # ---- producers

    def add_peer(self, peer: Peer) -> None:
        self.peers[peer] = None

    def register(self, topic: str, channel: str, peer: Peer) -> list[Registration]:
        """Make the peer a producer of the topic, and of the channel if one is named: what was new of it.

        Raises DirectoryFull.
        """
        # The topic has its producer before room is made for the channel, so that it is not what has to go.
        found = self.add_topic(topic)
        added = [found] if self.add_producer(found, peer) else []
        if channel:
            found = self.add_channel(topic, channel)
            added += [found] if self.add_producer(found, peer) else []
        return added

    def add_producer(self, registration: Registration, peer: Peer) -> bool:
        """Whether it was none before. An old one keeps its tombstone. Raises DirectoryFull."""
        if peer in registration.producers:
            return False
        if len(peer.topics) + len(peer.channels) >= self._limit_per_peer:
            raise DirectoryFull(f"more than {self._limit_per_peer} registrations of one producer")
        self._make_room(registration)
        registration.producers[peer] = NEVER
        peer.changing(registration).add(registration)
        self._empty.pop(registration, None)
        self.size += 1
        return True

    def remove_producer(self, registration: Registration, peer: Peer) -> bool:
        """Whether it was one. The registration stays, even without producers."""
        if registration.producers.pop(peer, None) is None:
            return False
        peer.changing(registration).discard(registration)
        self.size -= 1
        if not registration.producers:
            self._empty[registration] = None
        return True

    def unregister(self, registration: Registration, peer: Peer) -> bool:
        """As `remove_producer`; but an ephemeral name goes with its last producer."""
        removed = self.remove_producer(registration, peer)
        if not registration.producers and is_ephemeral(registration.channel or registration.topic):
            self.remove(registration)
        return removed

    def remove_peer(self, peer: Peer) -> list[Registration]:
        """The connection is gone: what it was a producer of. All names stay."""
        self.peers.pop(peer, None)
        found = [*peer.channels, *peer.topics]
        for registration in found:
            self.remove_producer(registration, peer)
        return found

    def _make_room(self, wanted: Registration | None = None) -> None:
        """For one more name or producer, but not at the cost of `wanted`."""
        while self.size >= self._limit:
            oldest = next((each for each in self._empty if each is not wanted), None)
            if oldest is None:
                raise DirectoryFull(f"more than {self._limit} registrations")
            self.remove(oldest)

    # ---- which producers are told of

    def tombstone(self, topic: str, node: str, now: int) -> list[Peer]:
        """Hide this node as a producer of the topic for a while: the producers that are meant."""
        found = self.topics.get(topic)
        if found is None:
            return []
        meant = [peer for peer in found.producers if peer.is_node(node)]
        for peer in meant:
            found.producers[peer] = now
            peer.tombstoned.add(found)
        return meant


class Visible:
    """Which producers nsqlookupd tells clients of, and which producers it leaves out for now."""

    def __init__(self, inactive_after: int, tombstone_lifetime: int) -> None:
        self._inactive_after = inactive_after
        self._tombstone_lifetime = tombstone_lifetime

    def active(self, peer: Peer, now: int) -> bool:
        return now - peer.last_update <= self._inactive_after

    def tombstoned(self, registration: Registration, peer: Peer, now: int) -> bool:
        since = registration.producers[peer]
        return since != NEVER and now - since < self._tombstone_lifetime

    def producers(self, registration: Registration, now: int) -> Iterator[Peer]:
        """Those that consumers should go to."""
        for peer in registration.producers:
            if self.active(peer, now) and not self.tombstoned(registration, peer, now):
                yield peer
