"""Latency from publish to FIN: by runs, over a window, per channel and per topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.stats.latency import LatencyWindow, percentiles
from tests.nsqd.api import running
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

START = 1_700_000_000 * SECOND


def told(
    now: int, *windows: LatencyWindow, quantiles: tuple[float, ...] = (1.0, 0.5)
) -> tuple[int, list[int]]:
    answer = percentiles(windows, quantiles, now)
    return answer["count"], [each["value"] for each in answer["percentiles"]]


def test_no_samples_are_zeros() -> None:
    assert told(START, LatencyWindow(10 * SECOND, START)) == (0, [0, 0])


def test_without_channels_there_are_no_percentiles() -> None:
    assert percentiles([], (0.5,), START) == {"count": 0, "percentiles": None}


def test_a_run_counts_as_its_messages() -> None:
    window = LatencyWindow(10 * SECOND, START)
    steps = [(100, START - 4 * SECOND), (103, START - 2 * SECOND), (104, START - SECOND)]
    window.record(steps, 100, 110, START)
    count, values = told(START, window, quantiles=(1.0, 0.7, 0.5))
    assert count == 10
    assert values == pytest.approx([4 * SECOND, 2 * SECOND, SECOND], rel=0.011)


@pytest.mark.parametrize(
    ("first", "end", "slow"), [(100, 103, 3), (101, 104, 2), (103, 110, 0), (102, 103, 1)]
)
def test_a_piece_of_a_run_has_its_own_timestamps(first: int, end: int, slow: int) -> None:
    window = LatencyWindow(10 * SECOND, START)
    window.record([(100, START - 4 * SECOND), (103, START - SECOND)], first, end, START)
    count, (most,) = told(START, window, quantiles=(1.0,))
    assert count == end - first
    assert most == pytest.approx((4 if slow else 1) * SECOND, rel=0.011)


def test_halves_take_turns() -> None:
    window = LatencyWindow(10 * SECOND, START)
    for seconds in (1, 2):
        window.record([(0, START)], 0, seconds, START + seconds * SECOND)
    assert told(START + 4 * SECOND, window)[0] == 3
    window.record([(0, START)], 0, 4, START + 6 * SECOND)  # the second half
    assert told(START + 10 * SECOND, window)[0] == 7
    assert told(START + 11 * SECOND + SECOND // 2, window)[0] == 4  # the first is forgotten
    assert told(START + 60 * SECOND, window)[0] == 0


def test_a_long_silence_forgets_everything() -> None:
    window = LatencyWindow(10 * SECOND, START)
    window.record([(0, START)], 0, 5, START)
    window.record([(0, START)], 0, 1, START + 100 * SECOND)
    assert told(START + 100 * SECOND, window)[0] == 1


def test_a_clock_that_is_set_back_counts_no_time() -> None:
    window = LatencyWindow(10 * SECOND, START)
    window.record([(0, START)], 0, 2, START - 3600 * SECOND)
    assert told(START - 3600 * SECOND, window) == (2, [0, 0])


def test_channels_are_merged() -> None:
    windows = [LatencyWindow(10 * SECOND, START) for _ in range(2)]
    for seconds, window in zip((1, 3), windows, strict=True):
        window.record([(0, START - seconds * SECOND)], 0, 10, START)
    count, values = told(START, *windows, quantiles=(1.0, 0.25))
    assert count == 20
    assert values == pytest.approx([3 * SECOND, SECOND], rel=0.011)


def test_channels_record_their_fins(tmp_path: Path) -> None:
    clock = Clock()
    harness = Harness(tmp_path, clock, e2e_processing_latency_percentile=[1.0, 0.5])
    topic = Topic(harness, "t", tmp_path / "t")
    topic.journaling.rewrite()
    channel = topic.channel("c")
    reader = Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 10)
    for seconds in range(4):
        topic.publish([b"x"], 0, Publisher())
        clock.now += SECOND
        if seconds == 1:
            harness.turn.run()
    harness.turn.run()
    ids = [number for number, _, _ in reader.take()]
    assert channel.finish(reader.consumer, ids[0], ids[1]) == []  # in order: it took 4 s
    assert channel.touch(reader.consumer, ids[2], 900 * SECOND, clock.now)
    assert channel.finish(reader.consumer, ids[2], ids[3] + 1) == []  # out of order: 2 s and 1 s
    assert channel.requeue(reader.consumer, ids[1], ids[2], 0, clock.now) == []  # counts for nothing
    assert channel.latency is not None
    count, values = told(clock.now, channel.latency, quantiles=(1.0, 0.5, 0.01))
    assert count == 3
    assert values == pytest.approx([4 * SECOND, 2 * SECOND, SECOND], rel=0.011)
    clock.now += SECOND
    harness.turn.run()
    # the second delivery ends 4 s after the publish
    assert channel.finish(reader.consumer, ids[1], ids[1] + 1) == []
    assert told(clock.now, channel.latency, quantiles=(1.0, 0.9))[1] == pytest.approx(
        [4 * SECOND, 4 * SECOND], rel=0.011
    )
    topic.close()


async def test_stats_tell_percentiles(tmp_path: Path) -> None:
    async with running(tmp_path, e2e_processing_latency_percentile=[1.0, 0.99]) as api:
        await api.done("/topic/create?topic=empty")
        client = await api.client()
        await client.sub("t", "c", rdy=10)
        await api.done("/mpub?topic=t", b"a\nb")
        for _ in range(2):
            client.fin(await client.message())
        await client.caught_up()
        topic = await api.topic("t")
        for latency in (topic["e2e_processing_latency"], topic["channels"][0]["e2e_processing_latency"]):
            assert latency["count"] == 2
            assert [each["quantile"] for each in latency["percentiles"]] == [1, 0.99]
            assert all(0 < each["value"] < 20 * SECOND for each in latency["percentiles"])
        assert (await api.topic("empty"))["e2e_processing_latency"] == {"count": 0, "percentiles": None}
        assert b'{"quantile":1,"value":' in (await api.get("/stats?format=json")).body
        text = (await api.get("/stats?topic=t")).body.decode()
        assert text.count("e2e%: ") == 2
        for line in text.splitlines():
            if "e2e%: " in line:
                values = line.partition("e2e%: ")[2].split(", ")
                assert len(values) == 2
                assert all(value.endswith(("us", "ms", "s")) for value in values)
