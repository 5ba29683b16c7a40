"""A topic's commits: which publishers are answered when, and what else is told."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsquark.nsqd.core.commit_gate import CommitGate
from nsquark.nsqd.core.topic import Topic
from tests.nsqd.harness import Clock, Harness, Publisher, Reader


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, Clock(), sync_every=1000)
    yield harness
    harness.close()


def publish(topic: Topic, *bodies: bytes, defer: float = 0.0) -> Publisher:
    publisher = Publisher()
    topic.publish(bodies, defer, publisher)
    return publisher


def test_publishers_are_answered_when_their_messages_are_stored(harness: Harness) -> None:
    topic = harness.topic("t")
    end = topic.log.end
    topic.active = False
    publishers = [publish(topic, b"one", b"two"), publish(topic, b"three")]
    assert [each.settled for each in publishers] == [[], []]
    harness.clock.now += 5 << 20
    topic.commit()
    topic.commit()  # nothing more
    assert [each.settled for each in publishers] == [[None], [None]]
    assert (topic.message_count, topic.message_bytes, topic.active, topic.log.end) == (3, 11, True, end + 3)
    assert (topic.publish_times.count, topic.publish_times.total_ns) == (3, 3 * (5 << 20))


def test_a_large_publish_is_stored_at_once_where_that_answers_it(harness: Harness) -> None:
    large = b"x" * 40_000
    alone = publish(harness.topic("t"), large)
    assert alone.settled == [None]
    # In a replica group the answer waits for the turn's frame, and one write for the whole turn is enough.
    harness.gate = gate = CommitGate(lambda: None, lambda: None)
    gate.refusing = ""
    topic = harness.topic("in-group")
    publishers = [publish(topic, large), publish(topic, large)]
    assert topic.message_count == 0
    topic.commit()
    assert topic.message_count == 2
    gate.sent(1)
    assert [each.settled for each in publishers] == [[], []]
    gate.commit(1)
    assert [each.settled for each in publishers] == [[None], [None]]


def test_a_commit_that_fails_counts_nothing(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = harness.topic("t")
    end = topic.log.end

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space")

    publisher = publish(topic, b"one", defer=1.0)
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        topic.commit()
    assert publisher.settled == ["no space"]
    assert (topic.log.end, topic.message_count, topic.publish_times.count) == (end, 0, 0)
    assert topic.needs_slow_path  # while the node has a problem
    assert publish(topic, b"two").settled == []
    topic.commit()
    assert (topic.message_count, harness.problems, topic.needs_slow_path) == (1, {}, False)


def test_nothing_is_stored_when_the_topic_is_deleted(harness: Harness) -> None:
    topic = harness.topic("t")
    publisher = publish(topic, b"one")
    topic.exit()
    topic.commit()
    assert (publisher.settled, topic.message_count) == (["exiting"], 0)


def with_a_channel(harness: Harness, topic: Topic) -> Callable[[], None]:
    topic.channel("c")
    return lambda: topic.delete_channel("c")


def with_a_watcher(harness: Harness, topic: Topic) -> Callable[[], None]:
    def watcher() -> None:
        pass

    topic.watch(watcher)
    return lambda: topic.unwatch(watcher)


def with_a_deferred_message(harness: Harness, topic: Topic) -> Callable[[], None]:
    publish(topic, b"later", defer=1.0)
    return topic.empty


def with_a_problem_of_the_node(harness: Harness, topic: Topic) -> Callable[[], None]:
    harness.unhealthy("no space", ("another", "fsync"))
    harness.unhealthy("no space", ("another", "journal"))
    return lambda: harness.healthy(("another",))


@pytest.mark.parametrize(
    "begin", [with_a_channel, with_a_watcher, with_a_deferred_message, with_a_problem_of_the_node]
)
def test_a_commit_takes_the_slow_path_while_others_must_hear_of_it(
    harness: Harness, begin: Callable[[Harness, Topic], Callable[[], None]]
) -> None:
    topic = harness.topic("t")
    assert not topic.needs_slow_path
    end = begin(harness, topic)
    assert topic.needs_slow_path
    end()
    assert not topic.needs_slow_path


def test_every_commit_of_an_ephemeral_topic_takes_the_slow_path(harness: Harness) -> None:
    assert harness.topic("t#ephemeral").needs_slow_path


def test_a_topic_that_is_opened_while_the_node_has_a_problem_takes_the_slow_path(harness: Harness) -> None:
    harness.unhealthy("no space")
    topic = harness.topic("t")
    assert topic.needs_slow_path
    publish(topic, b"one")
    topic.commit()
    assert (harness.problems, topic.needs_slow_path) == ({}, False)


def test_a_watcher_is_called_once(harness: Harness) -> None:
    topic = harness.topic("t")
    calls: list[int] = []
    topic.watch(lambda: calls.append(topic.log.end))
    for _ in range(2):
        publish(topic, b"one")
        topic.commit()
    assert calls == [1]
    assert not topic.needs_slow_path


def test_deferred_messages_that_are_passed_on_are_held_no_more(harness: Harness) -> None:
    topic = harness.topic("t")
    publish(topic, b"later", defer=1.0)
    topic.commit()
    topic.channel("c")
    topic.delete_channel("c")
    assert not topic.needs_slow_path


def test_a_sync_is_asked_for_when_enough_is_not_synced(harness: Harness) -> None:
    topic = harness.topic("t")
    topic.sync_every = 3
    for expected in (1, 2, 0):
        publish(topic, b"one")
        topic.commit()
        assert topic.log.unsynced == expected
    topic.syncs_soon = True
    for _ in range(4):
        assert publish(topic, b"one").settled == []
        topic.commit()
    assert topic.log.unsynced == 4


def test_answers_go_behind_the_messages_where_there_are_consumers(harness: Harness) -> None:
    topic, reader = harness.topic("t"), Reader()
    channel = topic.channel("c")
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 1)
    publisher = publish(topic, b"one")
    topic.commit()
    assert (publisher.settled, reader.take()) == ([], [])
    harness.turn.run()
    assert (publisher.settled, [body for _, _, body in reader.take()]) == ([None], [b"one"])
