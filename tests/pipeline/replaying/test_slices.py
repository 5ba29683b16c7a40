"""Slices of a replay and the file that knows how far it is, without Spark and without waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.pipeline.replaying.pacing import Pace, Rate, Unpaced
from nsquark.pipeline.replaying.slices import (
    AtLeastOncePublisher,
    ExactlyOncePublisher,
    Message,
    Replayer,
    ReplayState,
)
from nsquark.spark.sink.options import SinkOptions, parse_sink_options
from tests.spark.broker import Broker

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)


def messages(first: int, last: int) -> list[Message]:
    return [
        Message(BEGIN + timedelta(seconds=number), "t", "n", number, b"%d" % number)
        for number in range(first, last)
    ]


class Paper:
    """Takes slices down."""

    def __init__(self) -> None:
        self.slices: list[tuple[int, int]] = []

    def send(self, number: int, messages: Sequence[Message]) -> int:
        self.slices.append((number, len(messages)))
        return len(messages)


class Clock:
    """Time passes by waiting alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def replaying(
    publisher: Paper | ExactlyOncePublisher | AtLeastOncePublisher,
    pace: Pace,
    state: ReplayState,
    path: Path | None,
) -> Replayer:
    clock = Clock()
    return Replayer(publisher, pace, state, path, clock.wait, lambda: clock.now)


def test_what_is_due_together_goes_out_together() -> None:
    paper = Paper()
    replaying(paper, Rate(100), ReplayState("app"), None).run(iter(messages(0, 50)))
    assert sum(size for _, size in paper.slices) == 50
    assert [number for number, _ in paper.slices] == list(range(len(paper.slices)))
    assert 5 <= len(paper.slices) <= 11  # half a second, in ticks of 50 ms


def test_as_fast_as_it_goes_is_one_slice_up_to_its_bounds() -> None:
    paper = Paper()
    replaying(paper, Unpaced(), ReplayState("app"), None).run(iter(messages(0, 12_000)))
    assert paper.slices == [(0, 5000), (1, 5000), (2, 2000)]


def test_a_stop_ends_it_between_slices(tmp_path: Path) -> None:
    paper, state = Paper(), ReplayState.load(tmp_path)
    stopping = Replayer(paper, Rate(1), state, tmp_path, lambda seconds: True)
    stopping.run(iter(messages(0, 10)))
    assert paper.slices == [(0, 1)]
    kept = ReplayState.load(tmp_path)
    assert (kept.slice, kept.messages, kept.last) == (1, 1, ["2024-05-01T00:00:00+00:00", "t", "n", 0])


def test_a_state_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "replay.json").write_text("[]")
    with pytest.raises(StartError, match=r"replay.json' cannot be read"):
        ReplayState.load(tmp_path)


def sink(broker: Broker, delivery: str) -> SinkOptions:
    from nsquark.pipeline.output.delivery import MESSAGES

    given = {"nsqd.http.addresses": broker.http_address, "topic": "out", "deliveryMode": delivery}
    return parse_sink_options(given, MESSAGES)


def published(broker: Broker) -> int:
    return int(broker.log("out")["next"])


def rest(state: ReplayState, whole: list[Message]) -> Iterator[Message]:
    """The messages that Spark reads for a replay with this state."""
    last = -1 if state.last is None else state.last[3]
    return iter([message for message in whole if message.offset > last])


@pytest.mark.parametrize("then", [10, 30, 100])
def test_a_slice_that_went_out_before_the_crash_is_passed_over(
    broker: Broker, tmp_path: Path, then: int
) -> None:
    """The next start cuts its slices otherwise: smaller, larger, or to the end."""
    whole = messages(0, 100)
    options = sink(broker, "exactlyOnce")
    state = ReplayState.load(tmp_path)
    publisher = ExactlyOncePublisher(options, state.app)
    replaying(publisher, Unpaced(), state, tmp_path).run(iter(whole[:20]))
    publisher.send(1, whole[20:50])  # and here it dies, before the file is written
    assert published(broker) == 50
    for _ in range(10):
        state = ReplayState.load(tmp_path)
        publisher = ExactlyOncePublisher(options, state.app)
        ahead = list(rest(state, whole))[:then]
        replaying(publisher, Unpaced(), state, tmp_path).run(iter(ahead))
    assert published(broker) == 100
    peeked = broker.ask("GET", "/topic/peek?topic=out&limit=200")
    assert len(peeked["messages"]) == 100
    assert ReplayState.load(tmp_path).messages == 100


def test_at_least_once_goes_to_any_nsqd(broker: Broker) -> None:
    replaying(AtLeastOncePublisher(sink(broker, "atLeastOnce")), Unpaced(), ReplayState("app"), None).run(
        iter(messages(0, 100))
    )
    assert published(broker) == 100
