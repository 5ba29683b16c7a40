"""Large state must not cost more per message, and nothing may keep all others waiting while it is moved.

Counted in calls and in turns of the event loop, not in seconds: bench/daemon/stalls.py has those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsquark.nsqd.core.channel import WOKEN_AT_ONCE, Channel
from nsquark.nsqd.core.chores import SLICE, Chores
from nsquark.nsqd.core.timers import NEVER, SLICE_NS, Timers
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.core.topic_channels import DEFERRED_AT_ONCE
from nsquark.nsqd.core.turn import DELIVERY_NS, FEW_CHANNELS
from tests.nsqd.costs import calls
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, Clock())
    yield harness
    harness.close()


def listen(channel: Channel, ready: int, timeout: int = 60 * SECOND) -> Reader:
    reader = Reader(timeout)
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, ready)
    return reader


def publish(topic: Topic, *bodies: bytes, defer: float = 0) -> None:
    publisher = Publisher()
    topic.publish(list(bodies), defer, publisher)
    topic.commit()
    topic._services.turn.run()
    assert publisher.settled == [None]


def run_until_idle(harness: Harness, turns: int = 1000) -> int:
    """How many turns it takes until nothing is left to do at this time."""
    for number in range(turns):
        before = harness.timers.waiting | harness.due_timers.waiting
        harness.turn.run()
        harness.clock.now += 1
        harness.look_at_timers()
        after = harness.timers.waiting | harness.due_timers.waiting
        if before == after and not harness.turn._channels and not harness.turn._pumps:
            return number
    raise AssertionError("it never ends")


# ---- deferred messages


def deferred(harness: Harness, name: str, number: int) -> Topic:
    topic = harness.topic(name)
    topic.channel("c")
    for _ in range(number // 100):
        for _ in range(100):
            topic.publish([b"x"], 100, Publisher())
        topic.commit()
    while topic.depth:
        harness.turn.run()
    assert topic.channels["c"].deferred_count == number
    return topic


def test_trimming_does_not_walk_over_what_is_deferred(harness: Harness) -> None:
    harness.options.max_bytes_per_file = 1000
    few, many = deferred(harness, "few", 200), deferred(harness, "many", 4000)
    assert calls(lambda: many.channels["c"].low()) <= 2 * calls(lambda: few.channels["c"].low())
    assert calls(lambda: many.trimming.run(0.0)) <= 2 * calls(lambda: few.trimming.run(0.0))


def test_committing_costs_by_what_is_committed(harness: Harness) -> None:
    few, many = deferred(harness, "few", 200), deferred(harness, "many", 4000)
    cost = [calls(lambda each=each: each.channels["c"].commit(50)) for each in (few, many)]
    assert cost[1] <= 2 * cost[0]
    assert many.channels["c"].deferred_count == 3950


def test_a_dpub_to_a_paused_topic_does_not_walk_over_those_before(harness: Harness) -> None:
    cost = []
    for number in (100, 4000):
        topic = harness.topic(f"t{number}")
        topic.channel("c")
        topic.pause()
        for _ in range(number):
            topic.publish([b"x"], 100, Publisher())
        topic.commit()
        harness.turn.run()
        cost.append(calls(lambda topic=topic: publish(topic, b"one more", defer=100)))
    assert cost[1] <= cost[0] + 5


def test_what_was_held_is_passed_on_in_slices(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    reader = listen(channel, 2500)
    topic.pause()
    number = 4 * DEFERRED_AT_ONCE
    for each in range(number):
        topic.publish([b"d%d" % each], 5, Publisher())
        topic.publish([b"n%d" % each], 0, Publisher())
    topic.commit()
    topic.unpause()
    assert 0 < topic.depth < 2 * number
    assert channel.deferred_count == DEFERRED_AT_ONCE
    new = harness.topic("u")
    publish(new, b"others publish meanwhile")
    run_until_idle(harness)
    assert (topic.depth, channel.deferred_count, channel.message_count) == (0, number, 2 * number)
    assert [body for _, _, body in reader.take()] == [b"n%d" % each for each in range(number)]
    harness.pass_time(5 * SECOND)
    run_until_idle(harness)
    assert sorted(body for _, _, body in reader.take()) == sorted(b"d%d" % each for each in range(number))


def test_a_pause_stops_what_is_being_passed_on(harness: Harness) -> None:
    topic = harness.topic("t")
    topic.channel("c")
    topic.pause()
    for _ in range(3 * DEFERRED_AT_ONCE):
        topic.publish([b"x"], 5, Publisher())
    topic.commit()
    topic.unpause()
    topic.pause()
    run_until_idle(harness)
    assert topic.depth == 2 * DEFERRED_AT_ONCE
    topic.close()
    again = Topic(Harness(harness.path, harness.clock), "t", harness.path / "t")
    again.restore(["c"], True, harness.clock.now)
    assert (again.depth, again.channels["c"].deferred_count) == (2 * DEFERRED_AT_ONCE, DEFERRED_AT_ONCE)
    again.close()


def test_what_could_not_be_stored_is_not_held(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = harness.topic("t")
    topic.channel("c")
    topic.pause()
    publish(topic, b"good", defer=5)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for _ in range(3):
        topic.publish([b"bad"], 5, Publisher())
    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        topic.commit()
    topic.unpause()
    harness.turn.run()
    assert (topic.depth, topic.channels["c"].deferred_count) == (0, 1)


def test_messages_that_are_not_stored_yet_are_not_passed_on(harness: Harness) -> None:
    topic = harness.topic("t")
    topic.channel("c")
    topic.publish([b"x"], 5, Publisher())
    topic.channel("d")  # passes on what there is, which is nothing
    assert topic.channels["c"].deferred_count == 0
    topic.commit()
    assert [each.deferred_count for each in topic.channels.values()] == [1, 1]


def test_very_many_that_are_due_at_once_are_queued_in_slices(harness: Harness) -> None:
    number = 4 * WOKEN_AT_ONCE
    topic = deferred(harness, "t", number)
    channel, other = topic.channels["c"], harness.topic("u")
    harness.clock.now += 200 * SECOND
    harness.look_at_timers()
    assert (channel.depth, channel.deferred_count) == (WOKEN_AT_ONCE, number - WOKEN_AT_ONCE)
    publish(other, b"somebody else")
    run_until_idle(harness)
    assert (channel.depth, channel.deferred_count) == (number, 0)


def test_very_many_that_time_out_at_once_are_taken_back_in_slices(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    number = 3 * WOKEN_AT_ONCE
    one = listen(channel, number, SECOND)
    for _ in range(number):
        publish(topic, b"x")
    assert len(one.consumer.flights) == number
    one.consumer.ready_count = 0
    harness.clock.now += 2 * SECOND
    harness.timers.due(harness.clock.now)
    assert (channel.depth, channel.in_flight_count) == (WOKEN_AT_ONCE, number - WOKEN_AT_ONCE)
    assert channel.finish(one.consumer, one.got[-1][0], one.got[-1][0] + 1) == []  # still in flight
    run_until_idle(harness)
    assert (channel.depth, channel.in_flight_count, channel.timeout_count) == (number - 1, 0, number - 1)


# ---- channels


def test_channels_that_nobody_listens_to_cost_a_publish_nothing(harness: Harness) -> None:
    cost = []
    for name, number in (("few", 2), ("many", 300)):
        topic = harness.topic(name)
        for each in range(number):
            topic.channel(f"c{each}")
        listen(topic.channels["c0"], 2500)
        quiet = listen(topic.channels["c1"], 1)  # has what it wants after the first
        for _ in range(3):
            publish(topic, b"x")
        cost.append(calls(lambda topic=topic: publish(topic, b"x")))
        assert [each.message_count for each in topic.channels.values()] == [4] * number
        assert [each.depth for each in topic.channels.values()] == [0, 3, *[4] * (number - 2)]
        topic.channels["c1"].set_ready(quiet.consumer, 3)
        publish(topic, b"it listens again")
        assert len(quiet.take()) == 3
    assert cost[1] <= cost[0] + 2


def test_a_channel_is_told_again_when_its_consumer_finishes(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    reader = listen(channel, 1)
    publish(topic, b"one")
    [(number, _, _)] = reader.take()
    assert channel.listed
    publish(topic, b"two")
    assert not channel.listed
    channel.finish(reader.consumer, number, number + 1)
    harness.turn.run()
    [(number, _, body)] = reader.take()
    assert body == b"two"
    channel.finish(reader.consumer, number, number + 1)
    publish(topic, b"three")
    assert [body for _, _, body in reader.take()] == [b"three"]


def test_what_an_ephemeral_channel_has_no_room_for_is_dropped_though_nobody_listens(harness: Harness) -> None:
    harness.options.mem_queue_size = 3
    topic = harness.topic("t")
    channel = topic.channel("c#ephemeral")
    for _ in range(10):
        publish(topic, b"x")
    assert (channel.depth, channel.message_count) == (3, 10)


class TickingClock(Clock):
    """Time passes when it is looked at."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def monotonic(self) -> int:
        self.now += self.step
        return self.now


def test_topics_take_turns_when_there_is_too_much_to_deliver(tmp_path: Path) -> None:
    harness = Harness(tmp_path, TickingClock(0))
    crowd, small = harness.topic("crowd"), harness.topic("small")
    readers = [listen(crowd.channel(f"c{each}"), 10) for each in range(5 * FEW_CHANNELS)]
    lone = listen(small.channel("c"), 10)
    harness.turn.run()
    first, second = Publisher(), Publisher()
    crowd.publish([b"x"], 0, first)
    small.publish([b"y"], 0, second)
    assert isinstance(harness.clock, TickingClock)
    harness.clock.step = DELIVERY_NS // 10
    harness.turn.run()
    assert (first.settled, second.settled) == ([None], [None])
    assert len(lone.got) == 1  # though very many were ready before
    assert 2 <= sum(len(each.got) for each in readers) <= 12
    turns = 0
    while harness.turn._left:
        small.publish([b"z"], 0, second)
        harness.turn.run()
        turns += 1
    assert turns >= 4
    assert [len(each.got) for each in readers] == [1] * len(readers)
    assert len(lone.got) == len(second.settled) == turns + 1
    harness.close()


def test_one_channel_delivers_a_slice_and_goes_on_after_others(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    number = 5 * channel.max_runs
    for _ in range(number):
        publish(topic, b"x")
    readers = [listen(channel, 2500) for _ in range(2)]
    harness.turn.run()
    got = sum(len(each.got) for each in readers)
    assert channel.max_runs <= got <= channel.max_runs + 2
    assert run_until_idle(harness) >= 3
    assert [len(each.got) for each in readers] == [number // 2] * 2


def test_messages_to_come_again_are_delivered_in_slices_too(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    number = 3 * channel.max_runs
    leaver = listen(channel, 2500)
    for _ in range(number):
        publish(topic, b"x")
    channel.remove_consumer(leaver.consumer)
    reader = listen(channel, 2500)
    harness.turn.run()
    assert len(reader.got) == channel.max_runs
    run_until_idle(harness)
    assert {attempts for _, attempts, _ in reader.got} == {2}
    assert len(reader.got) == number


# ---- answers to what is not in flight


def test_unknown_ids_do_not_search_all_consumers_each(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [listen(channel, 5) for _ in range(200)]
    publish(topic, *[b"x"] * 400)
    searches = 0  # of all consumers, while deliveries are not noted
    last = max(number for each in readers for number, _, _ in each.got)
    for unknown in range(last + 1, last + 2001):
        searches += channel.deliveries is None
        assert channel.holder(unknown) is None
    assert searches * len(readers) < 2000
    for reader in readers:
        for number, _, _ in reader.got:
            assert channel.holder(number) is reader.consumer


def test_the_holder_is_known_whatever_happens_to_a_message(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    readers = [listen(channel, 4, SECOND) for _ in range(3)]

    def agrees() -> None:
        for number in range(first - 1, first + 20):
            expected = next((each for each in channel.consumers if each.find(number)), None)
            assert channel.holder(number) is expected

    publish(topic, *[b"x"] * 12)
    first = min(number for each in readers for number, _, _ in each.got)
    agrees()
    assert channel.deliveries is not None  # they are looked up
    for reader in readers:
        number = reader.take()[1][0]
        channel.finish(reader.consumer, number, number + 1)
    agrees()
    channel.requeue(readers[0].consumer, first, first + 1, 0, harness.clock.now)
    agrees()
    harness.turn.run()
    agrees()
    harness.pass_time(2 * SECOND)  # all of it goes to others
    run_until_idle(harness)
    agrees()
    channel.remove_consumer(readers[1].consumer)
    agrees()
    harness.turn.run()
    agrees()


def test_deliveries_are_not_noted_for_ever(harness: Harness) -> None:
    topic = harness.topic("t")
    channel = topic.channel("c")
    reader = listen(channel, 2500)
    publish(topic, b"x")
    for unknown in range(5):
        channel.holder(unknown)
    for _ in range(10_050):
        publish(topic, b"x")
        for number, _, _ in reader.take():
            channel.finish(reader.consumer, number, number + 1)
        if channel.deliveries is None:
            break
    assert channel.deliveries is None
    assert channel.holder(1) is None


# ---- the loop


class Loop:
    """Calls back when it is told to."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        self.soon.append(lambda: callback(*arguments))

    def call_later(self, _delay: float, callback: Callable[[], None]) -> Any:
        self.soon.append(callback)
        return type("Handle", (), {"cancel": lambda self: None})()

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def test_a_chore_is_done_a_slice_at_a_time_and_once_at_a_time() -> None:
    loop: Any = Loop()
    done: list[int] = []
    clock = iter(number * SLICE / 4 for number in range(1000))

    def steps(first: int) -> Any:
        for number in range(first, first + 10):
            done.append(number)
            yield

    chores = Chores(loop, lambda: next(clock))
    chores.start("count", lambda: steps(0))
    assert 0 < len(done) < 6
    chores.start("count", lambda: steps(100))  # is under way
    for _ in range(5):
        loop.turn()
    assert done == list(range(10))
    chores.start("count", lambda: steps(100))
    chores.close()
    loop.turn()
    assert done[-1] < 109
    assert loop.soon == []


def test_a_chore_that_fails_may_be_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    loop: Any = Loop()

    def fails() -> Any:
        yield
        raise RuntimeError("no")

    chores = Chores(loop, lambda: 0.0)
    for _ in range(2):
        chores.start("x", fails)
    assert len(caplog.records) == 2


def test_very_many_timers_do_not_keep_everybody_else_waiting() -> None:
    loop: Any = Loop()
    clock = TickingClock(SLICE_NS // 10)
    timers = Timers(loop, clock.monotonic)

    class Sleeper:
        wakes_at = NEVER

        def wake(self, now: int) -> None:
            woken.append(self)

    woken: list[Any] = []
    sleepers: list[Any] = [Sleeper() for _ in range(100)]
    for each in sleepers:
        timers.schedule(each, clock.now)
    loop.turn()
    assert 0 < len(woken) < 15
    turns = 0
    while loop.soon:
        loop.turn()
        turns += 1
    assert woken == sleepers
    assert turns > 5


def test_a_channel_that_goes_back_while_its_topic_is_trimmed_keeps_its_log(harness: Harness) -> None:
    harness.options.max_bytes_per_file = 300
    topic = harness.topic("t")
    one, two = topic.channel("a"), topic.channel("b")
    for _ in range(20):
        publish(topic, b"x" * 100)
    for each in (one, two):
        each.commit(topic.log.end)
    trimming = topic.trimming.steps(0.0)
    next(trimming)
    one.seek(topic.log.first + 1)
    for _ in trimming:
        pass
    assert one.depth == 19
    reader = listen(one, 100)
    harness.turn.run()
    assert len(reader.got) == 19
    one.commit(topic.log.end)
    topic.trimming.run(0.0)
    assert topic.log.first > 10


def cost_of_steps(steps: Iterator[None]) -> list[int]:
    """What each piece of work costs between two pauses."""
    cost, ended = [], False

    def step() -> None:
        nonlocal ended
        ended = next(steps, steps) is steps

    while not ended:
        cost.append(calls(step))
    return cost


def test_no_step_of_rewriting_a_journal_costs_more_when_there_is_more_to_write(harness: Harness) -> None:
    most = []
    for number in (2_000, 10_000):
        topic = deferred(harness, f"t{number}", number)
        held = harness.topic(f"h{number}")
        held.channel("c")
        held.pause()
        for _ in range(number):
            held.publish([b"x"], 100, Publisher())
        held.commit()
        harness.turn.run()
        cost = []
        for each in (topic, held):
            cost += cost_of_steps(each.journaling.rewriting())
        most.append(max(cost))
    assert most[1] <= 1.5 * most[0]
