"""When the log is kept for a channel, and what becomes of a channel that is not read."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.readership import Readership
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.stats.held import held_back
from nsquark.nsqd.stats.report import channel_stats
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

HOUR = 3600 * SECOND


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, Clock(), channel_hold_timeout=3600.0, max_bytes_per_file=1000)
    yield harness
    harness.close()


def publish(topic: Topic, count: int, size: int = 90) -> None:
    """Ten messages or so make a segment."""
    for number in range(count):
        topic.publish((b"%0*d" % (size, number),), 0.0, Publisher())
        topic.commit()


def trim(harness: Harness, topic: Topic) -> int:
    """The first position of the log after a trim."""
    topic.trimming.run(harness.clock() / 1e9)
    harness.turn.run()
    return topic.log.first


def idle_channel(harness: Harness, name: str = "c") -> tuple[Topic, Channel]:
    topic = harness.topic("t")
    channel = topic.channel(name)
    publish(topic, 50)
    return topic, channel


def test_the_log_is_kept_until_the_timeout_and_then_let_go(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    topic, channel = idle_channel(harness)
    harness.pass_time(HOUR - 1)
    assert (trim(harness, topic), channel.depth) == (0, 50)
    harness.pass_time(1)
    first = trim(harness, topic)
    assert 40 <= first < 50
    assert channel.depth == 50 - first
    assert channel.low() == first
    assert held_back(channel) == (0, 0, 0)
    told = " ".join(record.getMessage() for record in caplog.records)
    assert "channel t:c: not read for 3600 s: the log is no longer kept for it (50 mess" in told
    assert f"channel t:c: positions 0 to {first} are deleted unread" in told
    caplog.clear()
    trim(harness, topic)
    assert not caplog.records  # said once


def test_a_consumer_that_comes_back_gets_what_is_left_and_the_log_is_kept_again(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topic, channel = idle_channel(harness)
    harness.pass_time(HOUR)
    first = trim(harness, topic)
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    harness.turn.run()
    assert [int(body) for _, _, body in reader.take()] == list(range(first, 50))
    assert "channel t:c is read again" in caplog.text
    harness.pass_time(2 * HOUR)
    publish(topic, 50)
    assert trim(harness, topic) == first  # what is in flight is not finished
    channel.remove_consumer(reader.consumer)
    harness.pass_time(HOUR - 1)
    assert trim(harness, topic) == first
    harness.pass_time(1)
    assert trim(harness, topic) > first


def test_a_lease_and_a_commit_keep_the_log(harness: Harness) -> None:
    topic, channel = idle_channel(harness)
    harness.pass_time(HOUR - 1)
    channel.read_for(0)  # a commit
    harness.pass_time(HOUR - 1)
    assert (trim(harness, topic), channel.idle) == (0, HOUR - 1)
    channel.read_for(5 * HOUR)  # a lease
    harness.pass_time(5 * HOUR)
    assert (trim(harness, topic), channel.idle, channel.holds_log) == (0, 0, True)
    channel.readership.left(harness.clock.monotonic() - HOUR)  # its connection was closed
    assert channel.idle == HOUR
    assert trim(harness, topic) > 0


def test_a_reader_that_comes_while_the_topic_is_trimmed_keeps_the_log(harness: Harness) -> None:
    topic, channel = idle_channel(harness)
    topic.channel("other").commit(50)
    topic.channel("third").commit(50)
    harness.pass_time(HOUR)
    for name in ("other", "third"):
        topic.channels[name].read_for(0)
    steps = topic.trimming.steps(harness.clock() / 1e9)
    for _ in range(4):
        next(steps)
    channel.read_for(0)
    for _ in steps:
        pass
    assert (topic.log.first, channel.depth) == (0, 50)


def test_a_channel_may_have_a_timeout_of_its_own(harness: Harness) -> None:
    topic, channel = idle_channel(harness)
    channel.readership.hold_timeout = 0
    harness.pass_time(100 * HOUR)
    assert trim(harness, topic) == 0
    channel.readership.hold_timeout = 101 * HOUR
    assert trim(harness, topic) == 0
    harness.pass_time(HOUR)
    assert trim(harness, topic) > 0


def test_dead_letters_wait_for_ever(harness: Harness) -> None:
    topic = harness.topic("t.c.dead")
    channel = topic.channel("redeliver")
    publish(topic, 50)
    harness.pass_time(100 * HOUR)
    assert (trim(harness, topic), channel.depth) == (0, 50)


def test_other_channels_and_holds_still_keep_the_log(harness: Harness) -> None:
    topic, channel = idle_channel(harness)
    other = topic.channel("other")
    other.seek(20)
    harness.pass_time(HOUR)
    other.read_for(0)
    assert 10 <= trim(harness, topic) <= 20
    topic.holds["a reader"] = 25
    other.commit(50)
    assert trim(harness, topic) <= 25
    assert channel.low() == topic.log.first


def test_setting_the_clock_lets_nothing_expire(harness: Harness) -> None:
    topic, _ = idle_channel(harness)
    harness.clock.set_back = -1000 * HOUR
    assert trim(harness, topic) == 0


def test_the_time_before_this_process_does_not_count(harness: Harness) -> None:
    readership = Readership(0)
    readership.restore(10 * HOUR, HOUR)
    assert readership.idle(2 * HOUR) == 11 * HOUR
    assert not readership.has_expired(3 * HOUR, 2 * HOUR)
    assert readership.has_expired(3 * HOUR, 3 * HOUR)


def test_a_crash_keeps_what_was_let_go(harness: Harness, tmp_path: Path) -> None:
    topic, _ = idle_channel(harness)
    harness.pass_time(HOUR)
    first = trim(harness, topic)
    harness.close()
    again = Harness(tmp_path, harness.clock)
    restored = again.topic("t")
    restored.restore(["c"], False, harness.clock())
    assert restored.channels["c"].depth == 50 - first
    again.close()


def test_what_is_held_back_is_told(harness: Harness) -> None:
    topic, channel = idle_channel(harness)
    size = topic.log.size
    held = held_back(channel)
    assert (held.held_messages, held.held_bytes) == (50, size)
    assert held.held_segments == len(topic.log.segments) > 4
    channel.commit(35)
    held = held_back(channel)
    assert held.held_messages == 15
    assert 0 < held.held_bytes < size / 2
    assert held.held_segments == sum(segment.end > 35 for segment in topic.log.segments)
    channel.commit(50)
    assert held_back(channel) == (0, 0, 0)
    ephemeral = topic.channel("e#ephemeral")
    publish(topic, 50)
    assert held_back(ephemeral).held_segments == 2
    told = channel_stats(channel, clients=False)
    assert (told["held_messages"], told["hold_timeout"], told["holds_log"]) == (50, HOUR, True)


def test_a_topic_in_memory_has_no_files(harness: Harness) -> None:
    topic = harness.topic("t#ephemeral")
    channel = topic.channel("c")
    publish(topic, 5)
    assert held_back(channel) == (5, 0, 0)
