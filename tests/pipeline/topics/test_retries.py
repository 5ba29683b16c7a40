from __future__ import annotations

import pytest

from nsquark.pipeline.topics.retries import CounterHistory, Counters, counters_of


def watched(*looks: tuple[float, int, int]) -> CounterHistory:
    made = CounterHistory(3600)
    for now, received, retried in looks:
        made.add(now, {("t", "n"): Counters(received, retried)})
    return made


def test_a_share_is_of_what_was_delivered_meanwhile() -> None:
    seen = watched((100, 1000, 500), (105, 1080, 520), (160, 2000, 600))
    assert seen.share("t", 100, 105, 2) == pytest.approx(20 / 100)
    assert seen.share("t", 101, 159, 2) == pytest.approx(100 / 1100)


def test_a_topic_without_deliveries_has_no_retries() -> None:
    assert watched((100, 5, 1), (160, 5, 1)).share("t", 100, 160, 5) == 0.0


def test_what_was_not_watched_is_not_known() -> None:
    seen = watched((100, 5, 1), (160, 9, 1))
    assert seen.share("t", 40, 100, 5) is None
    assert seen.share("t", 160, 220, 5) is None
    assert CounterHistory(10).share("t", 0, 1, 5) is None


def test_counters_that_begin_anew_tell_nothing() -> None:
    assert watched((100, 500, 10), (160, 20, 0)).share("t", 100, 160, 5) is None


def test_old_snapshots_are_forgotten() -> None:
    seen = CounterHistory(60)
    for now in range(0, 1000, 10):
        seen.add(now, {("t", "n"): Counters(now, 0)})
    assert seen.share("t", 940, 990, 5) == 0.0
    assert seen.share("t", 800, 990, 5) is None


def test_several_nsqds_add_up() -> None:
    seen = CounterHistory(60)
    seen.add(0, {("t", "a"): Counters(0, 0)})
    seen.add(10, {("t", "a"): Counters(6, 1), ("t", "b"): Counters(3, 2), ("u", "a"): Counters(50, 50)})
    assert seen.share("t", 0, 10, 1) == pytest.approx(3 / 12)


def test_counters_leave_the_querys_own_channel_out() -> None:
    def channel(name: str, messages: int, requeued: int, timed_out: int) -> dict[str, object]:
        counts = {"message_count": messages, "requeue_count": requeued, "timeout_count": timed_out}
        return {"channel_name": name, **counts}

    topic = {
        "topic_name": "t",
        "channels": [channel("a", 10, 2, 1), channel("b", 10, 0, 0), channel("q", 9, 9, 9)],
    }
    assert counters_of({"topics": [topic]}, "q") == {"t": Counters(20, 3)}
    assert counters_of({"topics": [{"topic_name": "t", "channels": None}]}, "q") == {"t": Counters(0, 0)}
