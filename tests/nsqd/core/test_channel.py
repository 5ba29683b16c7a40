"""The channel against a model of dictionaries and sets, over random histories with restarts and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

TIMEOUT = 10 * SECOND
MAX_TIMEOUT = 25 * SECOND


@dataclass
class Flying:
    reader: Reader
    delivered: int
    deadline: int


@dataclass
class Message:
    """One message on one channel."""

    attempts: int = 0
    forgetful: bool = False  # a crash may have made the broker forget attempts
    flying: Flying | None = None
    due: int = 0  # deferred until then, 0 if it is not


@dataclass
class ChannelModel:
    messages: dict[bytes, Message] = field(default_factory=dict)  # the unfinished ones, by body
    finished: set[bytes] = field(default_factory=set)
    paused: bool = False
    readers: list[Reader] = field(default_factory=list)

    def deliverable(self) -> list[bytes]:
        return [body for body, m in self.messages.items() if m.flying is None and not m.due]


class ChannelMachine(RuleBasedStateMachine):
    @initialize(
        tail=st.sampled_from([1, 5, 10000]),
        file_size=st.sampled_from([300, 2000, 1 << 20]),
        pure_sync=st.booleans(),
    )
    def start(self, tail: int, file_size: int, pure_sync: bool) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.limits = {
            "mem_queue_size": tail,
            "max_bytes_per_file": file_size,
            "sync_every": 1 if pure_sync else 2500,
        }
        self.harness = Harness(self.path, self.clock, **self.limits)
        self.topic = Topic(self.harness, "t", self.path / "t")
        self.topic.journaling.rewrite()
        self.queue: dict[bytes, int] = {}  # the topic's own: body to due
        self.topic_paused = False
        self.channels: dict[str, ChannelModel] = {}
        self.ids: dict[bytes, int] = {}
        self.next_body = 0
        self.rewriting: Iterator[None] | None = None
        self.create_channel()
        self.add_reader("c0", 4)

    def teardown(self) -> None:
        if hasattr(self, "topic"):
            self.topic.close()
            shutil.rmtree(self.path)

    # ---- what the broker does, told to the model

    def channel(self, name: str) -> Channel:
        return self.topic.channels[name]

    def model_pump(self) -> None:
        if self.topic_paused or not self.channels:
            return
        for model in self.channels.values():
            for body, due in self.queue.items():
                model.messages[body] = Message(due=due if due > self.clock.now else 0)
        self.queue.clear()

    def settle(self) -> None:
        """Run the turn, and hold what was delivered against the model."""
        self.harness.turn.run()
        self.harness.look_at_timers()
        self.harness.turn.run()
        self.model_pump()
        for name, model in self.channels.items():
            for reader in model.readers:
                for number, attempts, body in reader.take():
                    self.check_delivery(name, model, reader, number, attempts, body)
            if not model.paused:
                room = [r for r in model.readers if r.consumer.room() > 0]
                assert not (room and model.deliverable()), "something waits though a consumer has room"

    def check_delivery(
        self, name: str, model: ChannelModel, reader: Reader, number: int, attempts: int, body: bytes
    ) -> None:
        assert not model.paused
        assert body not in model.finished, "delivered after FIN"
        message = model.messages[body]
        assert message.flying is None, "delivered twice"
        assert not message.due or message.due <= self.clock.now, "delivered too early"
        assert self.ids.setdefault(body, number) == number
        if message.forgetful:
            assert 1 <= attempts <= message.attempts + 1
        else:
            assert attempts == message.attempts + 1
        message.attempts, message.forgetful, message.due = attempts, False, 0
        message.flying = Flying(reader, self.clock.now, self.clock.now + reader.consumer.msg_timeout_ns)

    # ---- publishing

    @rule(
        count=st.integers(1, 8), size=st.sampled_from([1, 50, 700]), defer=st.sampled_from([0, 0, 0, 3, 15])
    )
    def publish(self, count: int, size: int, defer: int) -> None:
        bodies = []
        for _ in range(count):
            bodies.append(b"%d." % self.next_body + b"x" * size)
            self.next_body += 1
        publisher = Publisher()
        self.topic.publish(bodies, defer, publisher)
        for body in bodies:
            self.queue[body] = self.clock.now + defer * SECOND if defer else 0
        self.settle()
        assert publisher.settled == [None]

    # ---- consumers

    def create_channel(self) -> None:
        name = f"c{len(self.channels)}"
        self.topic.channel(name)
        self.channels[name] = ChannelModel()
        self.settle()

    def add_reader(self, name: str, rdy: int, timeout: int = TIMEOUT) -> None:
        reader = Reader(timeout)
        self.channel(name).add_consumer(reader.consumer)
        self.channels[name].readers.append(reader)
        self.channel(name).set_ready(reader.consumer, rdy)
        self.settle()

    @rule(data=st.data(), rdy=st.integers(0, 6), short=st.booleans())
    def subscribe(self, data: st.DataObject, rdy: int, short: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.channels)))
        self.add_reader(name, rdy, TIMEOUT // 2 if short else TIMEOUT)

    def pick(self, data: st.DataObject) -> tuple[str, ChannelModel, Reader] | None:
        choices = [(name, model, r) for name, model in self.channels.items() for r in model.readers]
        return data.draw(st.sampled_from(choices)) if choices else None

    @rule(data=st.data(), rdy=st.integers(0, 12))
    def set_ready(self, data: st.DataObject, rdy: int) -> None:
        if picked := self.pick(data):
            name, _, reader = picked
            self.channel(name).set_ready(reader.consumer, rdy)
            self.settle()

    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        if picked := self.pick(data):
            name, model, reader = picked
            model.readers.remove(reader)
            self.channel(name).remove_consumer(reader.consumer)
            for message in model.messages.values():
                if message.flying and message.flying.reader is reader:
                    message.flying = None
            self.settle()

    @rule(data=st.data(), writable=st.booleans())
    def stop_or_start_reading(self, data: st.DataObject, writable: bool) -> None:
        if picked := self.pick(data):
            name, _, reader = picked
            reader.consumer.writable = writable
            self.channel(name).has_room(reader.consumer)
            self.settle()

    # ---- answers

    def pick_message(self, data: st.DataObject) -> tuple[str, ChannelModel, Reader, bytes, bool] | None:
        """A message that was delivered at some time, and whether this reader has it in flight."""
        picked = self.pick(data)
        if not picked or not self.ids:
            return None
        name, model, reader = picked
        mine = [b for b, m in model.messages.items() if m.flying and m.flying.reader is reader]
        body = data.draw(st.sampled_from(mine if mine and data.draw(st.integers(0, 5)) else sorted(self.ids)))
        return name, model, reader, body, body in mine

    def finish(self, data: st.DataObject) -> None:
        if picked := self.pick_message(data):
            name, model, reader, body, mine = picked
            number = self.ids[body]
            missing = self.channel(name).finish(reader.consumer, number, number + 1)
            assert missing == ([] if mine else [number])
            if mine:
                del model.messages[body]
                model.finished.add(body)
            self.settle()

    def finish_range(self, data: st.DataObject) -> None:
        if picked := self.pick_message(data):
            name, model, reader, body, _ = picked
            length = data.draw(st.integers(2, 9))
            first = self.ids[body]
            missing = self.channel(name).finish(reader.consumer, first, first + length)
            bodies = {number: each for each, number in self.ids.items()}
            for number in range(first, first + length):
                each = bodies.get(number, b"")
                message = model.messages.get(each)
                mine = message is not None and message.flying is not None and message.flying.reader is reader
                assert (number in missing) == (not mine)
                if mine:
                    del model.messages[each]
                    model.finished.add(each)
            self.settle()

    def requeue(self, data: st.DataObject) -> None:
        if picked := self.pick_message(data):
            name, model, reader, body, mine = picked
            delay = data.draw(st.sampled_from([0, 0, 2, 20]))
            now, number = self.clock.now, self.ids[body]
            missing = self.channel(name).requeue(reader.consumer, number, number + 1, delay * SECOND, now)
            assert missing == ([] if mine else [number])
            if mine:
                model.messages[body].flying = None
                model.messages[body].due = now + delay * SECOND if delay else 0
            self.settle()

    def requeue_range(self, data: st.DataObject) -> None:
        if picked := self.pick_message(data):
            name, model, reader, body, _ = picked
            delay = data.draw(st.sampled_from([0, 0, 2, 20]))
            length = data.draw(st.integers(2, 9))
            now, first = self.clock.now, self.ids[body]
            missing = self.channel(name).requeue(reader.consumer, first, first + length, delay * SECOND, now)
            bodies = {number: each for each, number in self.ids.items()}
            for number in range(first, first + length):
                message = model.messages.get(bodies.get(number, b""))
                mine = message is not None and message.flying is not None and message.flying.reader is reader
                assert (number in missing) == (not mine)
                if message is not None and mine:
                    message.flying = None
                    message.due = now + delay * SECOND if delay else 0
            self.settle()

    def touch(self, data: st.DataObject) -> None:
        if picked := self.pick_message(data):
            name, model, reader, body, mine = picked
            now = self.clock.now
            assert self.channel(name).touch(reader.consumer, self.ids[body], MAX_TIMEOUT, now) == mine
            if mine and (flying := model.messages[body].flying):
                flying.deadline = min(now + reader.consumer.msg_timeout_ns, flying.delivered + MAX_TIMEOUT)
            self.settle()

    @rule(data=st.data(), kinds=st.lists(st.sampled_from("ffffFFrRt"), min_size=1, max_size=8))
    def answer(self, data: st.DataObject, kinds: list[str]) -> None:
        for kind in kinds:
            {
                "f": self.finish,
                "F": self.finish_range,
                "r": self.requeue,
                "R": self.requeue_range,
                "t": self.touch,
            }[kind](data)

    @rule(data=st.data(), kinds=st.lists(st.sampled_from("fFrR"), min_size=3, max_size=12))
    def answer_much(self, data: st.DataObject, kinds: list[str]) -> None:
        self.answer(data, kinds)

    # ---- time and operators

    @rule(seconds=st.sampled_from([1, 3, 6, 11, 30]))
    def pass_time(self, seconds: int) -> None:
        self.clock.now += seconds * SECOND
        now = self.clock.now
        for model in self.channels.values():
            for message in model.messages.values():
                if message.flying and message.flying.deadline <= now:
                    message.flying = None
                if message.due and message.due <= now:
                    message.due = 0
        self.settle()

    def pause_channel(self, data: st.DataObject) -> None:
        paused = not data.draw(st.integers(0, 2))
        name = data.draw(st.sampled_from(sorted(self.channels)))
        channel = self.channel(name)
        channel.pause() if paused else channel.unpause()
        self.channels[name].paused = paused
        self.settle()

    def pause_topic(self, data: st.DataObject) -> None:
        paused = not data.draw(st.integers(0, 2))
        self.topic.pause() if paused else self.topic.unpause()
        self.topic_paused = paused
        self.settle()

    def empty_channel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.channels)))
        self.channel(name).empty()
        model = self.channels[name]
        model.finished.update(model.messages)
        model.messages.clear()
        self.settle()

    def empty_topic(self, data: st.DataObject) -> None:
        self.topic.empty()
        for model in self.channels.values():
            model.finished.update(self.queue)
        self.queue.clear()
        self.settle()

    def trim(self, data: st.DataObject) -> None:
        self.topic.trimming.run(self.clock.now / SECOND)
        self.topic.journaling.rewrite()

    @rule(steps=st.integers(1, 12))
    def rewrite_the_journal_in_pieces(self, steps: int) -> None:
        """A little of it: whatever comes next comes in between."""
        with patch("nsquark.nsqd.core.backlog.SNAPSHOT_STEP", 1):
            if self.rewriting is None:
                self.rewriting = self.topic.journaling.rewriting()
            for _ in range(steps):
                if next(self.rewriting, self) is self:
                    self.rewriting = None
                    break

    @rule(data=st.data())
    def operate(self, data: st.DataObject) -> None:
        if len(self.channels) < 3 and data.draw(st.booleans()):
            self.create_channel()
            return
        operations = [self.pause_channel, self.pause_topic, self.empty_channel, self.empty_topic, self.trim]
        data.draw(st.sampled_from([*operations, self.pause_channel, self.pause_topic, self.trim]))(data)

    @rule(crash=st.booleans(), rdy=st.integers(1, 5))
    def restart(self, crash: bool, rdy: int) -> None:
        if not crash:
            self.topic.close()
        self.rewriting = None
        old, self.harness = self.topic, Harness(self.path, self.clock, **self.limits)
        self.topic = Topic(self.harness, "t", self.path / "t")
        self.topic.restore(sorted(self.channels), self.topic_paused, self.clock.now)
        if crash:
            old.log.close(sync=False)
            old.journal.close(sync=False)
        for name, model in self.channels.items():
            self.channel(name).paused = model.paused
            model.readers.clear()
            for message in model.messages.values():
                if message.flying:
                    message.flying = None
                    message.forgetful = crash
        self.settle()
        self.counts_agree()
        for name in self.channels:
            self.add_reader(name, rdy)

    # ---- what must hold at all times

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "topic"):
            return
        assert self.topic.depth == len(self.queue)
        for name, model in self.channels.items():
            channel = self.channel(name)
            flying = [m for m in model.messages.values() if m.flying]
            deferred = [m for m in model.messages.values() if m.due]
            assert channel.in_flight_count == len(flying)
            assert channel.deferred_count == len(deferred)
            assert channel.depth == len(model.messages) - len(flying) - len(deferred)
            for reader in model.readers:
                mine = [m for m in flying if m.flying and m.flying.reader is reader]
                assert reader.consumer.in_flight_count == len(mine)
            first = min((self.ids.get(body, 0) for body in model.messages), default=None)
            assert first is None or channel.low() >= self.topic.log.first
        assert not self.harness.reasons


ChannelMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestChannelAgainstModel = ChannelMachine.TestCase
