"""Seek, commit, retention and segment deletion together, against a model: what must be readable is, and what
must be gone is gone from the disk, over random histories with restarts and crashes."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsquark.log import LogReader, TimeSearch, files, segment
from nsquark.nsqd.core.channel import Channel
from nsquark.nsqd.core.topic import Topic
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader

TIMEOUT = 10 * SECOND
NAMES = ("a", "b", "c")


@dataclass
class Published:
    body: bytes
    time: int
    due: int


@dataclass
class ChannelModel:
    """`unfinished` has the deliveries so far of every position that is still owed."""

    unfinished: dict[int, int] = field(default_factory=dict)
    flying: dict[int, int] = field(default_factory=dict)  # position: deadline
    waiting: dict[int, int] = field(default_factory=dict)  # position: until when, after a REQ
    reader: Reader = field(default_factory=lambda: Reader(TIMEOUT))


@dataclass
class Held:
    """A reader from outside, and what it must find whenever it comes to read."""

    reader: LogReader
    bodies: list[bytes]


class LogMachine(RuleBasedStateMachine):
    @initialize(
        file_size=st.sampled_from([1, 300, 900]),
        tail=st.sampled_from([1, 10000]),
        retention_bytes=st.sampled_from([0, 0, 1500]),
        retention_time=st.sampled_from([0.0, 0.0, 1000.0]),
        at_once=st.sampled_from([0, 1 << 20]),
    )
    def start(
        self, file_size: int, tail: int, retention_bytes: int, retention_time: float, at_once: int
    ) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.patches = [
            mock.patch.object(segment, "AT_ONCE", at_once),
            mock.patch.object(segment, "INDEX_STRIDE", 200),
            mock.patch.object(files, "ROLL_WHEN_CONSUMED", 600),
            mock.patch.object(files, "ROLL_WHEN_NEARLY_CONSUMED", 600),
            mock.patch.object(files, "TRIM_EVERY", 200),
        ]
        for patch in self.patches:
            patch.start()
        self.clock = Clock()
        self.limits = {
            "max_bytes_per_file": file_size,
            "mem_queue_size": tail,
            "retention_bytes": retention_bytes,
            "retention_time": retention_time,
        }
        self.harness = Harness(self.path, self.clock, **self.limits)
        self.topic = Topic(self.harness, "t", self.path / "t")
        self.topic.journaling.rewrite()
        self.published: list[Published] = []
        self.channels: dict[str, ChannelModel] = {}
        self.ids: dict[int, int] = {}  # position: id
        self.held: list[Held] = []

    def teardown(self) -> None:
        if hasattr(self, "topic"):
            for held in self.held:
                held.reader.close()
            self.topic.close()
            shutil.rmtree(self.path)
            for patch in self.patches:
                patch.stop()

    # ---- helpers

    def channel(self, name: str) -> Channel:
        return self.topic.channels[name]

    @property
    def end(self) -> int:
        return len(self.published)

    def low(self) -> int:
        """What lies before is finished everywhere."""
        if not self.channels:
            return self.topic.pumped
        return min([self.end, *(p for model in self.channels.values() for p in model.unfinished)])

    def settle(self) -> None:
        """Run the turn until nothing changes, and hold what was delivered against the model."""
        for _ in range(3):
            self.harness.turn.run()
            self.harness.look_at_timers()
            self.harness.reads.finish()
        self.harness.turn.run()
        for model in self.channels.values():
            for number, attempts, body in model.reader.take():
                self.check_delivery(model, number, attempts, body)

    def check_delivery(self, model: ChannelModel, number: int, attempts: int, body: bytes) -> None:
        position = int(body.split(b".")[0])
        now = self.clock.now
        assert body == self.published[position].body
        assert self.ids.setdefault(position, number) == number
        assert position in model.unfinished, "delivered though it was finished"
        assert position not in model.flying, "delivered twice"
        assert now >= max(self.published[position].due, model.waiting.pop(position, 0)), "too early"
        assert 1 <= attempts <= model.unfinished[position] + 1
        model.unfinished[position] = attempts
        model.flying[position] = now + TIMEOUT

    def places(self) -> st.SearchStrategy[int]:
        return st.integers(self.topic.log.first, self.end)

    # ---- publishing and consuming

    @rule(
        count=st.integers(1, 6), size=st.sampled_from([1, 40, 400]), defer=st.sampled_from([0, 0, 0, 3, 15])
    )
    def publish(self, count: int, size: int, defer: int) -> None:
        bodies = [b"%d." % (self.end + number) + b"x" * size for number in range(count)]
        publisher = Publisher()
        self.topic.publish(bodies, defer, publisher)
        due = self.clock.now + defer * SECOND if defer else 0
        for body in bodies:
            for model in self.channels.values():
                model.unfinished[self.end] = 0
            self.published.append(Published(body, self.clock.now, due))
        self.settle()
        assert publisher.settled == [None]

    @rule(name=st.sampled_from(NAMES), rdy=st.integers(0, 5))
    def set_ready(self, name: str, rdy: int) -> None:
        if name in self.channels:
            self.channel(name).set_ready(self.channels[name].reader.consumer, rdy)
            self.settle()

    @rule(data=st.data(), name=st.sampled_from(NAMES), answer=st.sampled_from("fffffr"))
    def answer(self, data: st.DataObject, name: str, answer: str) -> None:
        """FIN or REQ something, mostly what is in flight."""
        model = self.channels.get(name)
        if model is None or not self.ids:
            return
        mine = sorted(model.flying)
        position = data.draw(
            st.sampled_from(mine if mine and data.draw(st.integers(0, 5)) else sorted(self.ids))
        )
        number, consumer = self.ids[position], model.reader.consumer
        if answer == "f":
            missing = self.channel(name).finish(consumer, number, number + 1)
            assert missing == ([] if position in model.flying else [number])
            if not missing:
                del model.flying[position], model.unfinished[position]
        else:
            delay = data.draw(st.sampled_from([0, 5]))
            now = self.clock.now
            missing = self.channel(name).requeue(consumer, number, number + 1, delay * SECOND, now)
            assert missing == ([] if position in model.flying else [number])
            if not missing:
                del model.flying[position]
                model.waiting[position] = self.clock.now + delay * SECOND
        self.settle()

    @rule(name=st.sampled_from(NAMES))
    def consume_everything(self, name: str) -> None:
        """What is owed comes, all of it and nothing else."""
        model = self.channels.get(name)
        if model is None:
            return
        self.pass_time(60)
        owed = set(model.unfinished)
        seen: set[int] = set()
        self.channel(name).set_ready(model.reader.consumer, 1000)
        self.settle()
        while model.flying:
            for position in sorted(model.flying):
                number = self.ids[position]
                assert self.channel(name).finish(model.reader.consumer, number, number + 1) == []
                del model.flying[position], model.unfinished[position]
                seen.add(position)
            self.settle()
        self.channel(name).set_ready(model.reader.consumer, 0)
        assert seen == owed

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def pass_time(self, seconds: int) -> None:
        self.clock.now += seconds * SECOND
        for model in self.channels.values():
            model.flying = {p: deadline for p, deadline in model.flying.items() if deadline > self.clock.now}
        self.settle()

    # ---- moving

    @rule(data=st.data(), name=st.sampled_from(NAMES), where=st.sampled_from(["as NSQ", "from", "from"]))
    def create(self, data: st.DataObject, name: str, where: str) -> None:
        if name in self.channels:
            return
        position = self.topic.pumped
        self.topic.channel(name)
        if where == "from":
            position = data.draw(self.places())
            self.channel(name).seek(position)
        self.channels[name] = ChannelModel(dict.fromkeys(range(position, self.end), 0))
        self.channel(name).add_consumer(self.channels[name].reader.consumer)
        self.settle()

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def seek(self, data: st.DataObject, name: str) -> None:
        if name in self.channels:
            first = self.topic.log.first
            position = data.draw(st.one_of(st.just(first), st.just(self.end), self.places()))
            self.channel(name).seek(position)
            model = self.channels[name]
            model.unfinished = dict.fromkeys(range(position, self.end), 0)
            model.flying.clear()
            model.waiting.clear()
            self.settle()

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def commit(self, data: st.DataObject, name: str) -> None:
        if name in self.channels:
            position = data.draw(st.integers(0, self.end))
            before = self.channel(name).low()
            self.channel(name).commit(position)
            assert self.channel(name).low() >= max(position, before)
            model = self.channels[name]
            for table in (model.unfinished, model.flying, model.waiting):
                for each in [each for each in table if each < position]:
                    del table[each]
            self.settle()

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.channels:
            self.topic.delete_channel(name)
            del self.channels[name]
            self.settle()

    # ---- the disk

    def files(self) -> list[tuple[int, int]]:
        """(first position, size) of every segment there is."""
        paths = sorted((self.path / "t").glob("*.log"))
        return [(int(path.stem), path.stat().st_size) for path in paths]

    def consumed(self, low: int, base: int, size: int) -> bool:
        """Whether another file had better follow the newest one."""
        if size < 600 or base >= low:
            return False
        _, needed_from = self.topic.log.segments[-1].mark_before(low, size)
        return low >= self.end or size - needed_from <= size // 4

    @rule()
    def trim_files(self) -> None:
        """Now and then the files alone, which is all that a log that grows fast has done."""
        list(self.topic.trimming.steps_of_files(time.time()))
        assert self.topic.log.first <= self.low()
        self.settle()

    @rule(later=st.sampled_from([0, 0, 5000]))
    def trim(self, later: int) -> None:
        """Exactly those files go that no channel needs and no retention wants."""
        files = self.files()
        now = time.time() + later
        low = self.low()
        size, days = self.limits["retention_bytes"], self.limits["retention_time"]

        def unwanted(newest: bool) -> bool:
            too_much = size and sum(each for _, each in files) > size
            too_old = days and later and not newest
            return bool(too_much or too_old or not (size or days))

        if self.consumed(low, *files[-1]) and unwanted(newest=True):
            files.append((self.end, 0))
        while len(files) > 1 and files[1][0] <= low and unwanted(newest=False):
            del files[0]
        self.topic.trimming.run(now)
        assert self.files() == files
        assert self.topic.log.first == files[0][0] <= low
        self.settle()

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """A reader begins, and takes its time."""
        if len(self.held) < 3:
            start = data.draw(self.places())
            end = data.draw(st.integers(start, self.end))
            reader = LogReader(self.topic.log, start, end, 1 << 30)
            files = len([base for base, _ in self.files() if base < end])
            if files < 60:  # more than that are not held together
                bodies = [each.body for each in self.published[start:end]]
                self.held.append(Held(reader, bodies))
            else:
                reader.close()

    @rule(data=st.data())
    def read_what_is_held(self, data: st.DataObject) -> None:
        if self.held:
            held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            assert bodies_of(held.reader) == held.bodies

    @rule(data=st.data())
    def read_all_there_is(self, data: st.DataObject) -> None:
        position = self.topic.log.first
        while position < self.end:
            reader = LogReader(self.topic.log, position, self.end, data.draw(st.sampled_from([1, 1 << 20])))
            found = bodies_of(reader)
            assert found
            assert found == [each.body for each in self.published[position : position + len(found)]]
            position += len(found)

    @rule(data=st.data())
    def find_a_time(self, data: st.DataObject) -> None:
        first = self.topic.log.first
        times = sorted({each.time for each in self.published[first:]} | {self.clock.now + 1})
        wanted = data.draw(st.sampled_from(times)) + data.draw(st.sampled_from([-1, 0]))
        expected = next((p for p in range(first, self.end) if self.published[p].time >= wanted), self.end)
        assert TimeSearch(self.topic.log).position_at(wanted) == expected

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        epoch = self.topic.epoch
        if not crash:
            self.topic.close()
        old, self.harness = self.topic, Harness(self.path, self.clock, **self.limits)
        self.topic = Topic(self.harness, "t", self.path / "t")
        self.topic.restore(sorted(self.channels), False, self.clock.now)
        if crash:
            old.log.close(sync=False)
            old.journal.close(sync=False)
        assert self.topic.epoch == epoch
        for name, model in self.channels.items():
            model.flying.clear()
            model.reader = Reader(TIMEOUT)
            self.channel(name).add_consumer(model.reader.consumer)
        self.settle()

    # ---- what must hold at all times

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not hasattr(self, "topic"):
            return
        assert self.topic.log.end == self.end
        assert self.topic.log.first <= self.low()
        assert self.files()[0][0] == self.topic.log.first
        for name, model in self.channels.items():
            channel = self.channel(name)
            assert channel.in_flight_count == len(model.flying)
            assert channel.depth + channel.deferred_count + len(model.flying) == len(model.unfinished)
            assert channel.low() == min([self.end, *model.unfinished])
        assert not self.harness.reasons
        assert len(os.listdir("/proc/self/fd")) < 500


def bodies_of(reader: LogReader) -> list[bytes]:
    try:
        reader.locate()
        data = b"".join(iter(lambda: reader.read(150), b""))
        offsets = [offset for (offset,) in struct.iter_unpack(">I", reader.index)]
        sizes = [struct.unpack_from(">I", data, offset)[0] for offset in offsets]
        return [data[at + 34 : at + 4 + size] for at, size in zip(offsets, sizes, strict=True)]
    finally:
        reader.close()


LogMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestLogAgainstModel = LogMachine.TestCase
