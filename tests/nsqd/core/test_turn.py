"""The order of what the end of a turn does, and that nothing of it is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.turn import Turn
from tests.nsqd.harness import Clock, Harness, Publisher, Reader


class Witness(Publisher):
    """A publisher that notes how much its consumer had got when it was answered."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader
        self.delivered: list[int] = []

    def settle(self, reason: str | None) -> None:
        super().settle(reason)
        self.delivered.append(len(self.reader.got))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, Clock())


def consumed(harness: Harness, ready: int) -> tuple[Channel, Reader]:
    channel, reader = harness.topic("t").channel("c"), Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, ready)
    return channel, reader


def test_messages_go_before_the_answers_to_their_publishers(harness: Harness) -> None:
    _, reader = consumed(harness, 10)
    publisher = Witness(reader)
    harness.topic("t").publish([b"one", b"two"], 0, publisher)
    harness.turn.run()
    assert (publisher.settled, publisher.delivered) == ([None], [2])


@pytest.mark.parametrize("ready", [0, 10])
def test_who_publishes_is_answered_whether_anything_is_delivered_or_not(harness: Harness, ready: int) -> None:
    channel, reader = consumed(harness, ready)
    publisher = Witness(reader)
    topic = harness.topic("t")
    topic.pause()
    topic.publish([b"one"], 0, publisher)
    harness.turn.run()
    topic.unpause()
    channel.pause()
    topic.publish([b"two"], 0, publisher)
    harness.turn.run()
    assert (publisher.settled, publisher.delivered) == ([None, None], [0, 0])


def test_a_commit_between_turns_has_its_answers_come_with_the_next(harness: Harness) -> None:
    scheduled: list[Callable[[], None]] = []
    harness.turn = Turn(scheduled.append, harness.clock)
    _, reader = consumed(harness, 0)
    scheduled.pop()()
    publisher = Witness(reader)
    topic = harness.topic("t")
    topic.publish([b"one"], 0, publisher)
    topic.commit()
    assert (publisher.settled, len(scheduled)) == ([], 1)
    scheduled.pop()()
    assert publisher.settled == [None]


def test_an_answer_that_fails_does_not_keep_others_from_theirs(harness: Harness) -> None:
    class Broken(Publisher):
        def settle(self, reason: str | None) -> None:
            raise RuntimeError("never mind")

    _, reader = consumed(harness, 10)
    publisher = Witness(reader)
    topic = harness.topic("t")
    topic.publish([b"one"], 0, Broken())
    topic.publish([b"two"], 0, publisher)
    harness.turn.run()
    assert (publisher.settled, len(reader.got)) == ([None], 2)


def test_a_publisher_without_consumers_is_answered_with_the_commit(harness: Harness) -> None:
    publisher = Publisher()
    topic = harness.topic("t")
    topic.publish([b"one"], 0, publisher)
    topic.commit()
    assert publisher.settled == [None]


def test_turns_that_leave_work_behind_do_not_multiply() -> None:
    """Each read of the sockets runs a turn of its own, whatever is scheduled already."""
    queue: list[Callable[[], None]] = []
    turn = Turn(queue.append)

    class Endless:
        name = "t"
        pumped = 0

        def pump(self) -> None:
            self.pumped += 1
            turn.pumps(cast(Any, self))

    topic = Endless()
    turn.pumps(cast(Any, topic))
    for _ in range(10):
        turn.hold()  # as the reader of the sockets does
        turn.run()
        assert len(queue) == 1
    queue.pop()()
    assert len(queue) == 1
    assert topic.pumped == 11
