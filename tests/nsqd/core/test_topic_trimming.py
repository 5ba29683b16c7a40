"""Topics and channels that are not used hold no memory: what they need again is in the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark import kernel
from nsquark.log import files
from nsquark.nsqd import broker as broker_module
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from tests.daemon import Nsqd, until
from tests.nsqd.api import running
from tests.nsqd.harness import Clock, Harness, Publisher, Reader

MEGABYTE = 1 << 20


@pytest.fixture
def trimmed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that has grown by 16 MiB is trimmed, so that the tests need not write 64."""
    monkeypatch.setattr(files, "TRIM_EVERY", 16 * MEGABYTE)
    monkeypatch.setattr(files, "ROLL_WHEN_NEARLY_CONSUMED", 16 * MEGABYTE)


def opened(path: Path, **changes: object) -> tuple[Harness, Topic, Channel, Reader]:
    harness = Harness(path, Clock(), **changes)
    topic = harness.topic("t")
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    return harness, topic, channel, reader


def publish(harness: Harness, topic: Topic, first: int, count: int, size: int = 1000) -> None:
    for number in range(first, first + count):
        topic.publish([b"%08d" % number + bytes(size)], 0, Publisher())
        harness.turn.run()


def numbers(reader: Reader) -> list[int]:
    return [int(body[:8]) for _, _, body in reader.take()]


def passes(topic: Topic, limit: int = 10) -> int:
    """Trim the topic for as long as the broker would; how often that was."""
    for number in range(limit):
        if not (topic.active or topic.log.trimmable):
            return number
        topic.trimming.run(0.0)
    return limit


def test_a_topic_that_falls_idle_lets_go_of_everything(tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path)
    channel.set_ready(reader.consumer, 2500)
    publish(harness, topic, 0, 100)
    got = reader.take()
    assert len(got) == 100
    assert channel.cursor.data
    assert channel.finish(reader.consumer, got[0][0], got[-1][0] + 1) == []
    harness.turn.run()
    assert passes(topic) < 10
    assert not topic.log.tail.chunks
    assert channel.cursor.data == b""
    publish(harness, topic, 100, 5)
    assert numbers(reader) == [100, 101, 102, 103, 104]
    topic.close()


def test_a_slow_consumer_of_an_idle_topic_holds_nothing_in_the_end(tmp_path: Path) -> None:
    """The log is small and forgotten, and only FINs come: they do not keep the last chunk either."""
    harness, topic, channel, reader = opened(tmp_path)
    topic.publish([b"%08d" % number for number in range(10)], 0, Publisher())
    harness.turn.run()
    seen = []
    for _ in range(10):
        channel.set_ready(reader.consumer, 1)
        harness.turn.run()
        [(number, _, body)] = reader.take()
        seen.append(int(body[:8]))
        passes(topic)
        assert channel.cursor.data == b""
        assert channel.finish(reader.consumer, number, number + 1) == []
        channel.set_ready(reader.consumer, 0)
        harness.turn.run()
    assert seen == list(range(10))
    passes(topic)
    assert channel.cursor.data == b""
    topic.close()


@pytest.mark.parametrize("size", [1000, 50_000])
def test_a_lagging_channel_costs_disk_and_not_memory(size: int, tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path, mem_queue_size=1, max_bytes_per_file=MEGABYTE)
    publish(harness, topic, 0, 200, size)
    seen = []
    for _ in range(20):
        channel.set_ready(reader.consumer, 7)
        harness.turn.run()
        assert channel.cursor.data
        got = reader.take()
        seen += [int(body[:8]) for _, _, body in got]
        channel.set_ready(reader.consumer, 0)
        channel.finish(reader.consumer, got[0][0], got[-1][0] + 1)
        harness.turn.run()
        for _ in range(2):  # two looks, a second apart
            topic.trimming.run(0.0)
        assert channel.cursor.data == b""
    assert seen == list(range(140))
    channel.set_ready(reader.consumer, 2500)
    harness.turn.run()
    assert numbers(reader) == list(range(140, 200))
    topic.close()


def test_a_channel_that_reads_keeps_what_it_has_at_hand(tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path, mem_queue_size=1)
    publish(harness, topic, 0, 100)
    channel.set_ready(reader.consumer, 1)
    for number in range(50):
        harness.turn.run()
        [(message, _, body)] = reader.take()
        assert int(body[:8]) == number
        topic.trimming.run(0.0)
        assert channel.cursor.data
        channel.finish(reader.consumer, message, message + 1)
    topic.close()


def test_an_ephemeral_topic_keeps_what_is_owed(tmp_path: Path) -> None:
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t#ephemeral")
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    topic.publish([b"%08d" % number for number in range(10)], 0, Publisher())
    harness.turn.run()
    channel.set_ready(reader.consumer, 3)
    harness.turn.run()
    for _ in range(3):
        topic.trimming.run(0.0)
    channel.set_ready(reader.consumer, 2500)
    harness.turn.run()
    assert numbers(reader) == list(range(10))


@pytest.mark.usefixtures("trimmed_early")
def test_a_topic_that_grows_fast_has_its_files_trimmed(tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path)
    channel.set_ready(reader.consumer, 2500)
    publish(harness, topic, 0, 33, MEGABYTE)
    assert harness.grown == ["t", "t"]
    got = reader.take()
    channel.finish(reader.consumer, got[0][0], got[-5][0] + 1)  # but for four
    list(topic.trimming.steps_of_files(0.0))
    assert topic.log.first == 0
    publish(harness, topic, 33, 1)
    assert len(topic.log.segments) == 2
    channel.finish(reader.consumer, got[-4][0], got[-1][0] + 1)
    list(topic.trimming.steps_of_files(0.0))
    assert topic.log.first == 33
    assert numbers(reader) == [33]
    topic.close()


@pytest.mark.usefixtures("trimmed_early")
def test_a_channel_that_lags_has_no_small_files_made(tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path)
    topic.channel("lagging")
    channel.set_ready(reader.consumer, 2500)
    for first in range(0, 80, 20):
        publish(harness, topic, first, 20, MEGABYTE)
        got = reader.take()
        channel.finish(reader.consumer, got[0][0], got[-1][0] + 1)
        list(topic.trimming.steps_of_files(0.0))
    assert harness.grown
    assert len(topic.log.segments) == 1
    topic.close()


def test_a_topic_that_is_gone_has_no_files_trimmed(tmp_path: Path) -> None:
    harness, topic, channel, reader = opened(tmp_path)
    channel.set_ready(reader.consumer, 2500)
    publish(harness, topic, 0, 20, MEGABYTE)
    got = reader.take()
    channel.finish(reader.consumer, got[0][0], got[-1][0] + 1)
    topic.exit()
    list(topic.trimming.steps_of_files(0.0))
    assert [each.end for each in topic.log.segments] == [20]


@pytest.mark.usefixtures("trimmed_early")
async def test_a_consumed_log_stays_small_between_the_looks_at_all_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 3600)
    async with running(tmp_path) as api:
        topic = api.broker.topic("t")
        channel, reader = topic.channel("c"), Reader()
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, 2500)
        for _ in range(60):
            await api.done("/pub?topic=t", bytes(MEGABYTE - 1000))
            await until(lambda: reader.consumer.in_flight_count)
            [(number, _, _)] = reader.take()
            assert channel.finish(reader.consumer, number, number + 1) == []
        await until(lambda: sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 40 * MEGABYTE)


async def test_the_system_gets_the_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[None] = []
    monkeypatch.setattr(broker_module, "TRIM_INTERVAL", 0.02)
    monkeypatch.setattr(broker_module, "give_back_memory", lambda: given.append(None))
    async with running(tmp_path) as api:
        for number in range(20):
            await api.done(f"/mpub?topic=t{number}&binary=false", b"x" * 50_000 + b"\n")
        await until(lambda: not any(topic.log.tail.chunks for topic in api.broker.topics.values()))
        assert not given  # a megabyte is not worth it
        for number in range(20):
            await api.done(f"/pub?topic=t{number}", bytes(1_000_000))
        await until(lambda: given)


@pytest.mark.skipif(not kernel.COMPILED, reason="the pure kernel takes minutes for as many bytes")
async def test_consumed_and_idle_topics_hold_a_few_kilobytes(tmp_path: Path) -> None:
    topics, batch = 40, [bytes(500_000)] * 8
    with Nsqd(tmp_path).start() as nsqd:
        before = nsqd.memory()
        async with await nsqd.connect() as publisher:
            for number in range(topics):
                async with await nsqd.connect() as consumer:
                    await consumer.sub(f"t{number}", "c", rdy=100)
                    await publisher.mpub(f"t{number}", batch)
                    for _ in batch:
                        consumer.fin(await consumer.message())
                    await consumer.caught_up()
        await until(lambda: nsqd.memory() < before + 30 * MEGABYTE)
