"""The directory without sockets or a clock: what NSQ's does, and a comparison with a plain model of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from nsquark.nsqlookupd.registrations import DirectoryFull, Peer, Registrations, Visible
from nsquark.wire import PeerInfo

SECOND = 1_000_000_000
TOPICS = ["orders", "events", "x#ephemeral"]
CHANNELS = ["archive", "y#ephemeral"]


def peer(number: int = 1, host: str = "host", now: int = 0) -> Peer:
    return Peer(f"10.0.0.{number}:1000", PeerInfo(host, "h", 4150, 4151, "1.3.0"), now)


def directory(limit: int = 1000, limit_per_peer: int = 1000) -> Registrations:
    return Registrations(limit, limit_per_peer)


# ---- names and producers


def test_a_channel_brings_its_topic() -> None:
    found, nsqd = directory(), peer()
    added = found.register("orders", "archive", nsqd)
    assert [(each.topic, each.channel) for each in added] == [("orders", ""), ("orders", "archive")]
    assert list(found.topics["orders"].producers) == [nsqd]
    assert found.register("orders", "archive", nsqd) == []


def test_a_producer_that_goes_leaves_every_name_behind() -> None:
    found, nsqd = directory(), peer()
    found.add_peer(nsqd)
    found.register("x#ephemeral", "y#ephemeral", nsqd)
    found.remove_peer(nsqd)
    assert not found.peers
    assert not found.topics["x#ephemeral"].producers
    assert [each.channel for each in found.channels_of("x#ephemeral")] == ["y#ephemeral"]


def test_an_ephemeral_name_goes_with_the_last_producer_that_unregisters() -> None:
    found, one, two = directory(), peer(1), peer(2)
    for nsqd in (one, two):
        found.register("x#ephemeral", "y#ephemeral", nsqd)
    found.unregister(found.topics["x#ephemeral"], one)
    assert "x#ephemeral" in found.topics
    found.unregister(found.topics["x#ephemeral"], two)
    assert "x#ephemeral" not in found.topics
    # the channels of the topic stay, as in NSQ
    assert len(found.channels_of("x#ephemeral")) == 1


def test_a_deleted_topic_takes_its_channels_and_its_producers_forget_it() -> None:
    found, nsqd = directory(), peer()
    found.register("orders", "archive", nsqd)
    found.register("events", "", nsqd)
    assert len(found.remove_topic("orders")) == 2
    assert found.remove_topic("orders") == []
    assert [each.topic for each in nsqd.topics] == ["events"]
    assert not nsqd.channels
    assert not found.channels


def test_two_connections_of_one_address_are_two_producers() -> None:
    found, one, two = directory(), peer(1), peer(2)
    found.register("orders", "", one)
    found.register("orders", "", two)
    assert len(found.topics["orders"].producers) == 2


# ---- which producers are told of


def test_who_is_silent_for_longer_than_the_timeout_is_hidden() -> None:
    found, nsqd = directory(), peer(now=5)
    found.register("orders", "", nsqd)
    visible = Visible(300 * SECOND, 45 * SECOND)
    orders = found.topics["orders"]
    assert list(visible.producers(orders, 5 + 300 * SECOND)) == [nsqd]
    assert list(visible.producers(orders, 6 + 300 * SECOND)) == []
    nsqd.last_update = 400 * SECOND
    assert list(visible.producers(orders, 401 * SECOND)) == [nsqd]


def test_a_tombstone_hides_one_topic_of_one_producer_for_a_while() -> None:
    found, one, two = directory(), peer(1, "one"), peer(2, "two")
    visible = Visible(10_000 * SECOND, 45 * SECOND)
    for nsqd in (one, two):
        found.register("orders", "", nsqd)
        found.register("events", "", nsqd)
    assert found.tombstone("orders", "one:4151", 100) == [one]
    orders, events = found.topics["orders"], found.topics["events"]
    assert list(visible.producers(orders, 100 + 45 * SECOND - 1)) == [two]
    assert list(visible.producers(events, 100)) == [one, two]
    found.register("orders", "", one)  # again: keeps it
    assert list(visible.producers(orders, 100)) == [two]
    assert list(visible.producers(orders, 100 + 45 * SECOND)) == [one, two]
    found.tombstone("orders", "one:4151", 200 * SECOND)
    found.unregister(orders, one)
    found.register("orders", "", one)
    assert list(visible.producers(orders, 200 * SECOND)) == [two, one]


@pytest.mark.parametrize("node", ["host:4150", "host", "*", "", "host:4151x"])
def test_a_tombstone_for_somebody_else_does_nothing(node: str) -> None:
    found, nsqd = directory(), peer()
    found.register("orders", "", nsqd)
    assert found.tombstone("orders", node, 1) == []
    assert found.tombstone("*", "host:4151", 1) == []


@pytest.mark.parametrize("node", ["fe80::1:4151", "[fe80::1]:4151"])
def test_an_ipv6_node_may_be_spelt_with_brackets(node: str) -> None:
    found, nsqd = directory(), peer(host="fe80::1")
    found.register("orders", "", nsqd)
    assert found.tombstone("orders", node, 1) == [nsqd]


# ---- bounds


def test_one_producer_cannot_fill_the_directory() -> None:
    found, greedy, modest = directory(limit_per_peer=10), peer(1), peer(2)
    for number in range(5):
        found.register(f"topic{number}", "channel", greedy)
    with pytest.raises(DirectoryFull, match="more than 10 registrations of one producer"):
        found.register("another", "", greedy)
    assert len(greedy.topics) + len(greedy.channels) == 10
    found.register("topic0", "channel", modest)


def test_a_full_directory_forgets_the_names_that_nobody_has_first() -> None:
    found, nsqd = directory(limit=6), peer()
    for name in ("first", "second", "third", "fourth"):
        found.add_topic(name)
    found.register("kept", "", nsqd)  # a name and a producer
    assert found.size == 6
    found.register("more", "channel", nsqd)
    assert sorted(found.topics) == ["kept", "more"]
    assert found.size == 6
    with pytest.raises(DirectoryFull, match="more than 6 registrations"):
        found.register("too", "much", nsqd)
    with pytest.raises(DirectoryFull):
        found.add_topic("another")
    found.remove_peer(nsqd)
    found.add_channel("another", "channel")
    assert found.size <= 6


# ---- against a model


class Model(RuleBasedStateMachine):
    """NSQ's own way to keep it: a dictionary of registrations to peers."""

    peers = Bundle("peers")

    def __init__(self) -> None:
        super().__init__()
        self.found = directory()
        self.flat: dict[tuple[str, str, str], dict[str, int]] = {}
        self.number = 0
        self.now = 1
        self.connected: dict[str, Peer] = {}

    @rule(target=peers)
    def connect(self) -> Peer:
        self.number += 1
        nsqd = peer(self.number, f"host{self.number % 3}")
        self.found.add_peer(nsqd)
        self.connected[nsqd.id] = nsqd
        return nsqd

    @rule(nsqd=peers, topic=st.sampled_from(TOPICS), channel=st.sampled_from(["", *CHANNELS]))
    def register(self, nsqd: Peer, topic: str, channel: str) -> None:
        if nsqd.id in self.connected:
            self.found.register(topic, channel, nsqd)
            self.flat.setdefault(("topic", topic, ""), {}).setdefault(nsqd.id, 0)
            if channel:
                self.flat.setdefault(("channel", topic, channel), {}).setdefault(nsqd.id, 0)

    @rule(nsqd=peers, topic=st.sampled_from(TOPICS), channel=st.sampled_from(CHANNELS))
    def unregister_channel(self, nsqd: Peer, topic: str, channel: str) -> None:
        known = self.found.channels.get(topic, {}).get(channel)
        if known is not None:
            self.found.unregister(known, nsqd)
        self.drop(("channel", topic, channel), nsqd, channel)

    @rule(nsqd=peers, topic=st.sampled_from(TOPICS))
    def unregister_topic(self, nsqd: Peer, topic: str) -> None:
        for known in self.found.channels_of(topic):
            self.found.remove_producer(known, nsqd)
        if topic in self.found.topics:
            self.found.unregister(self.found.topics[topic], nsqd)
        for key in [key for key in self.flat if key[:2] == ("channel", topic)]:
            self.flat[key].pop(nsqd.id, None)
        self.drop(("topic", topic, ""), nsqd, topic)

    def drop(self, key: tuple[str, str, str], nsqd: Peer, name: str) -> None:
        producers = self.flat.get(key)
        if producers is not None:
            producers.pop(nsqd.id, None)
            if not producers and name.endswith("#ephemeral"):
                del self.flat[key]

    @rule(nsqd=peers)
    def disconnect(self, nsqd: Peer) -> None:
        self.found.remove_peer(nsqd)
        self.connected.pop(nsqd.id, None)
        for producers in self.flat.values():
            producers.pop(nsqd.id, None)

    @rule(topic=st.sampled_from(TOPICS), channel=st.sampled_from(["", *CHANNELS]))
    def create(self, topic: str, channel: str) -> None:
        self.flat.setdefault(("topic", topic, ""), {})
        if channel:
            self.found.add_channel(topic, channel)
            self.flat.setdefault(("channel", topic, channel), {})
        else:
            self.found.add_topic(topic)

    @rule(topic=st.sampled_from(TOPICS))
    def delete(self, topic: str) -> None:
        self.found.remove_topic(topic)
        self.flat = {key: producers for key, producers in self.flat.items() if key[1] != topic}

    @rule(topic=st.sampled_from(TOPICS), host=st.integers(0, 2))
    def tombstone(self, topic: str, host: int) -> None:
        self.now += 1
        self.found.tombstone(topic, f"host{host}:4151", self.now)
        for peer_id in self.flat.get(("topic", topic, ""), {}):
            if self.connected[peer_id].info.broadcast_address == f"host{host}":
                self.flat["topic", topic, ""][peer_id] = self.now

    @invariant()
    def both_know_the_same(self) -> None:
        known = {("topic", name, ""): each.producers for name, each in self.found.topics.items()}
        for topic, channels in self.found.channels.items():
            known |= {("channel", topic, name): each.producers for name, each in channels.items()}
        shown = {
            key: {nsqd.id: since for nsqd, since in producers.items()} for key, producers in known.items()
        }
        assert shown == self.flat
        assert {nsqd.id for nsqd in self.found.peers} == set(self.connected)
        assert self.found.size == len(self.flat) + sum(map(len, self.flat.values()))

        assert self.found.topic_names() == sorted(key[1] for key in self.flat if key[0] == "topic")

    @invariant()
    def every_peer_knows_its_own(self) -> None:
        for nsqd in self.connected.values():
            own = {("topic", each.topic, "") for each in nsqd.topics}
            own |= {("channel", each.topic, each.channel) for each in nsqd.channels}
            assert own == {key for key, producers in self.flat.items() if nsqd.id in producers}
            assert {each.topic for each in nsqd.tombstoned} == {
                key[1] for key, producers in self.flat.items() if producers.get(nsqd.id)
            }
            assert nsqd.named_topics()[0] == sorted(nsqd.topics, key=lambda each: each.topic)


TestModel = Model.TestCase
