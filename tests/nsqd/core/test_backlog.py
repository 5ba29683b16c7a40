"""What operators do to a channel is counted, for readers of the log that commit to it, over crashes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.nsqd.core.topic import Topic
from tests.nsqd.harness import Clock, Harness, Publisher, Reader


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, Clock())
    yield harness
    harness.close()


def publish(topic: Topic, count: int) -> None:
    topic.publish([b"message"] * count, 0.0, Publisher())
    topic.commit()


def crash(harness: Harness) -> tuple[Harness, Topic]:
    """Another process goes on with the files of the first."""
    harness.turn.run()
    harness.close()
    again = Harness(harness.path, harness.clock)
    topic = again.topic("t")
    topic.restore([], False, harness.clock())
    return again, topic


def test_seeking_counts_and_emptying_is_remembered(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    publish(topic, 10)
    channel.begin_at(3)
    assert channel.moves == 0
    channel.seek(7)
    channel.empty()
    channel.seek(5)
    channel.commit(6)
    channel.empty()
    assert (channel.moves, channel.low(), list(channel.emptied)) == (2, 10, [(6, 10)])
    again = harness
    for _ in range(2):  # from the records, and from the snapshot
        again, topic = crash(again)
        channel = topic.channels["c"]
        assert (channel.moves, channel.low(), list(channel.emptied)) == (2, 10, [(6, 10)])
    again.close()


def test_a_commit_that_does_not_know_of_a_move_has_no_effect(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    publish(topic, 10)
    assert channel.commit(2, 0)
    channel.seek(1)
    assert not channel.commit(5, 0)
    assert channel.low() == 1
    assert channel.commit(5, 1)
    assert channel.low() == 5
    assert channel.commit(6)  # a client that does not count moves
    assert channel.commit(7, 4)  # the reader knows more than a channel that was created again
    assert (channel.low(), channel.moves) == (7, 4)
    _, topic = crash(harness)
    assert topic.channels["c"].moves == 4


def test_what_was_emptied_of_the_topic_is_told_over_crashes(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    busy = topic.channel("busy")
    busy.add_consumer(Reader().consumer)
    publish(topic, 3)
    topic.pause()
    publish(topic, 4)
    topic.empty()
    publish(topic, 2)
    topic.empty()
    topic.unpause()
    publish(topic, 1)
    assert (list(channel.emptied), list(busy.emptied)) == ([(3, 9)], [])
    assert (channel.depth, channel.emptied.first_behind(0), channel.emptied.first_behind(9)) == (
        4,
        (3, 9),
        None,
    )
    again, topic = crash(harness)
    again, topic = crash(again)
    channel = topic.channels["c"]
    assert (list(channel.emptied), channel.depth) == ([(3, 9)], 4)
    channel.commit(3)
    assert (list(channel.emptied), channel.low()) == ([(3, 9)], 9)
    channel.commit(9)
    assert not channel.emptied
    again.close()


def test_a_move_forgets_what_was_emptied(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    topic.pause()
    publish(topic, 4)
    topic.empty()
    channel.seek(0)
    assert not channel.emptied
    _, topic = crash(harness)
    assert not topic.channels["c"].emptied


def test_what_is_published_in_place_of_lost_messages_was_not_emptied(harness: Harness) -> None:
    """A power cut took the end of the log, and the journal knows that it was emptied."""
    topic = harness.topic("t")
    channel = topic.channel("c")
    publish(topic, 3)
    size = topic.log.size
    publish(topic, 4)
    channel.empty()
    assert list(channel.emptied) == [(0, 7)]
    harness.turn.run()
    harness.close()
    [segment] = (harness.path / "t").glob("*.log")
    os.truncate(segment, size)
    again, topic = crash(harness)
    channel = topic.channels["c"]
    publish(topic, 4)
    assert (channel.low(), channel.depth, list(channel.emptied)) == (3, 4, [(0, 3)])
    again.close()
