"""A journal that is rewritten while everything goes on: whatever happens when, nothing of it is lost."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark.log import ChannelState, Deferred
from nsquark.nsqd.core import backlog
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.core.topic_journal import restore_deferred
from nsquark.nsqd.storage.syncer import Syncer
from tests.nsqd.harness import SECOND, Clock, Harness, Publisher, Reader


class Rig:
    def __init__(self, path: Path) -> None:
        self.harness = Harness(path, Clock())
        self.others: list[Harness] = []
        self.topic = self.harness.topic("t")
        self.channel = self.topic.channel("c")
        self.reader = Reader()
        self.channel.add_consumer(self.reader.consumer)

    def publish(self, *bodies: bytes, defer: float = 0) -> None:
        self.topic.publish(list(bodies), defer, Publisher())
        self.run()

    def run(self) -> None:
        self.topic.commit()
        self.harness.turn.run()

    def want(self, number: int) -> None:
        self.channel.set_ready(self.reader.consumer, number)
        self.run()

    def after_a_crash(self, elsewhere: Path | None = None) -> Topic:
        """The topic as another process would find it now, or would find a copy of it."""
        path = elsewhere or self.harness.path
        if elsewhere is not None:
            shutil.copytree(self.harness.path / "t", elsewhere / "t")
        return self.opened(path, ["c"])

    def opened(self, path: Path, channels: list[str]) -> Topic:
        harness = Harness(path, self.harness.clock)
        self.others.append(harness)
        topic = harness.topics["t"] = Topic(harness, "t", path / "t")
        topic.restore(channels, False, harness.clock.now)
        return topic

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.harness.path / "t").glob("journal.*"))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(backlog, "SNAPSHOT_STEP", 2)
    rig = Rig(tmp_path)
    yield rig
    for harness in (rig.harness, *rig.others):
        harness.close()


def busy(rig: Rig) -> None:
    """Messages in every state: 5 finished, 4 in flight, 3 requeued, 6 deferred, 2 fresh."""
    rig.want(12)
    rig.publish(*[b"x"] * 12)
    got = [number for number, _, _ in rig.reader.take()]
    for number in got[:5]:
        rig.channel.finish(rig.reader.consumer, number, number + 1)
    rig.reader.consumer.ready_count = 0
    for number in (got[5], got[7], got[6]):  # three ranges
        rig.channel.requeue(rig.reader.consumer, number, number + 1, 0, rig.harness.clock.now)
    rig.publish(*[b"d"] * 3, defer=5)
    rig.publish(*[b"d"] * 3, defer=9)
    rig.publish(b"y", b"y")


def state(topic: Topic) -> tuple[int, int]:
    channel = topic.channels["c"]
    return channel.depth + channel.in_flight_count, channel.deferred_count


def finish_all(rig: Rig) -> None:
    rig.want(100)
    for number, _, _ in rig.reader.take():
        rig.channel.finish(rig.reader.consumer, number, number + 1)


CHANGES: list[Callable[[Rig], None]] = [
    lambda rig: rig.want(100),
    finish_all,
    lambda rig: rig.harness.pass_time(6 * SECOND),
    lambda rig: (rig.harness.pass_time(6 * SECOND), rig.want(100)),
    lambda rig: (rig.harness.pass_time(10 * SECOND), finish_all(rig)),
    lambda rig: rig.channel.remove_consumer(rig.reader.consumer),
    lambda rig: rig.channel.empty(),
    lambda rig: rig.channel.seek(2),
    lambda rig: rig.channel.commit(14),
    lambda rig: rig.publish(b"new", defer=5),
    lambda rig: rig.publish(b"new"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", range(8))
def test_a_crash_at_any_time_finds_what_was_there(
    rig: Rig, when: int, change: Callable[[Rig], None], tmp_path: Path
) -> None:
    busy(rig)
    assert state(rig.topic) == (9, 6)
    for step, _ in enumerate(rig.topic.journaling.rewriting()):
        if step == when:
            change(rig)
            rig.run()
        if step >= when:
            assert state(rig.after_a_crash(tmp_path / str(step))) == state(rig.topic)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", range(8))
def test_the_new_file_says_the_same(rig: Rig, when: int, change: Callable[[Rig], None]) -> None:
    busy(rig)
    rewriting = rig.topic.journaling.rewriting()
    for step, _ in enumerate(rewriting):
        if step == when:
            change(rig)
            rig.run()
    assert rig.topic.journal.next_file is None
    assert rig.files() == ["journal.000002"]
    again = rig.after_a_crash()
    assert state(again) == state(rig.topic)
    unfinished = sum(state(again))
    reader = Reader()
    again.channels["c"].add_consumer(reader.consumer)
    again.channels["c"].set_ready(reader.consumer, 100)
    harness: Any = again._services
    harness.turn.run()
    harness.pass_time(60 * SECOND)
    assert len({number for number, _, _ in reader.got}) == unfinished


def test_until_it_is_complete_the_old_file_counts(rig: Rig) -> None:
    busy(rig)
    rewriting = rig.topic.journaling.rewriting()
    next(rewriting)
    next(rewriting)
    assert rig.files() == ["journal.000001", "journal.000002.new"]
    again = rig.after_a_crash()
    assert state(again) == (9, 6)
    assert rig.files() == ["journal.000002"]  # the rest of it is gone
    again.close()


def test_while_it_is_brought_to_the_disk_both_files_go_on(rig: Rig) -> None:
    waiting: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    rig.harness.syncer.run_then = lambda work, done: waiting.append((work, done))
    busy(rig)
    for _ in rig.topic.journaling.rewriting():
        pass
    [(work, done)] = waiting
    rig.publish(b"one more", defer=5)
    work()  # it has its name now, and the journal has not switched to it yet
    assert rig.files() == ["journal.000001", "journal.000002"]
    rig.publish(b"another", defer=5)
    fds, _ = rig.topic.journal.start_sync()
    assert len(fds) == 2
    for fd in fds:
        os.close(fd)
    folder = rig.harness.path / "t"
    assert (folder / "journal.000002").stat().st_size > (folder / "journal.000001").stat().st_size // 2
    rig.topic.trimming.run(0.0)
    assert len(waiting) == 1  # one at a time
    done(None)
    assert rig.files() == ["journal.000002"]
    rig.publish(b"and another", defer=5)
    assert state(rig.after_a_crash()) == (9, 9)


@pytest.mark.parametrize("which", [1, 3])
def test_a_disk_that_refuses_leaves_the_old_file(
    rig: Rig, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(rig)
    rewriting = rig.topic.journaling.rewriting()
    for _ in range(which):
        next(rewriting)
    copy = rig.topic.journal.next_file
    assert copy is not None
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if fd == copy.fd:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in rewriting:
            pass
    assert rig.topic.journal.next_file is None
    assert rig.files() == ["journal.000001"]
    assert rig.harness.problems
    rig.publish(b"more")
    for _ in rig.topic.journaling.rewriting():
        pass
    assert not rig.harness.problems
    assert state(rig.after_a_crash()) == (10, 6)


def test_a_topic_that_ends_meanwhile_leaves_nothing_behind(rig: Rig) -> None:
    busy(rig)
    rewriting = rig.topic.journaling.rewriting()
    next(rewriting)
    rig.topic.close()
    assert len(rig.files()) == 1
    assert list(rewriting) == []
    assert state(rig.after_a_crash()) == (9, 6)


def test_a_channel_that_is_deleted_meanwhile_is_gone(rig: Rig) -> None:
    busy(rig)
    rig.topic.channel("d")
    rewriting = rig.topic.journaling.rewriting()
    next(rewriting)
    rig.topic.delete_channel("c")
    rig.run()
    for _ in rewriting:
        pass
    assert list(rig.opened(rig.harness.path, []).channels) == ["d"]


def test_an_overgrown_journal_is_rewritten_step_by_step(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsquark.log.journal.journal.COMPACT_FROM", 10)
    monkeypatch.setattr("nsquark.log.journal.journal.COMPACT_GROWTH", 1)
    busy(rig)
    assert rig.topic.journal.overgrown
    assert len(list(rig.topic.trimming.steps(0.0))) > 6
    assert rig.files() == ["journal.000002"]


def test_a_topic_without_channels_says_where_it_stands(rig: Rig) -> None:
    topic = rig.topic
    topic.delete_channel("c")
    topic.publish([b"one", b"two"], 0, Publisher())
    topic.commit()
    for _ in topic.journaling.rewriting():
        pass
    again = rig.opened(rig.harness.path, [])
    assert (again.epoch, again.depth) == (topic.epoch, 2)


def test_a_topic_that_ends_while_it_is_trimmed_writes_no_more(rig: Rig) -> None:
    busy(rig)
    rig.topic.journal.not_synced(rig.topic.journal.generation)  # so that it would be written again
    trimming = rig.topic.trimming.steps(0.0)
    next(trimming)
    rig.topic.exit()
    before = rig.files()
    assert list(trimming) == []
    assert rig.files() == before
    assert rig.harness.health.text == "OK"


def test_the_disk_is_not_blamed_for_the_journal_of_a_topic_that_is_gone(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.topic.exit()
    rig.topic.journaling.failed(OSError(errno.ENOENT, "No such file or directory"))
    assert caplog.records == []


def test_a_paused_topic_that_a_crash_set_back_defers_nothing_twice(tmp_path: Path) -> None:
    """nsqd.dat still says paused, though the topic went on and its messages were finished or requeued."""
    harness = Harness(tmp_path, Clock())
    topic = harness.topic("t")
    channel, reader = topic.channel("c"), Reader()
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 100)
    topic.publish([b"stays in flight"], 0, Publisher())
    harness.turn.run()
    topic.pause()
    for _ in range(3):
        topic.publish([b"d"], 1, Publisher())
        harness.turn.run()
    topic.unpause()
    harness.clock.now += 2 * SECOND
    channel.queue_due(harness.clock.now)
    harness.turn.run()
    _, (finished, _, _), (requeued, _, _), _ = reader.take()
    channel.finish(reader.consumer, finished, finished + 1)
    channel.requeue(reader.consumer, requeued, requeued + 1, 0, harness.clock.now)
    harness.turn.run()
    other = Harness(tmp_path, harness.clock)
    again = other.topics["t"] = Topic(other, "t", tmp_path / "t")
    again.restore(["c"], True, harness.clock.now)
    again.unpause()
    channel = again.channels["c"]
    channel.queue_due(harness.clock.now)
    assert (channel.depth, channel.deferred_count) == (3, 0)
    for each in (harness, other):
        each.close()


@pytest.mark.parametrize("switched", [False, True])
async def test_an_fsync_of_the_new_file_that_fails_is_not_made_up_for_by_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, switched: bool
) -> None:
    busy(rig)
    journal = rig.topic.journal
    rewriting = rig.topic.journaling.rewriting()
    next(rewriting)
    rig.publish(b"more", defer=9)
    assert journal.next_file is not None
    copy, working = os.fstat(journal.next_file.fd).st_ino, os.fdatasync

    def refusing(fd: int) -> None:
        if os.fstat(fd).st_ino == copy:
            raise OSError(errno.EIO, "Input/output error")
        working(fd)

    monkeypatch.setattr(os, "fdatasync", refusing)
    syncer = Syncer(asyncio.get_running_loop())
    syncer.request(rig.topic)
    if switched:
        assert list(rewriting)
    syncer.stop()
    assert (journal.sound, journal.next_file) == (False, None)
    assert list(rewriting) == []
    assert len(rig.files()) == 1
    syncer.close()


def test_a_journal_that_lacks_descriptors_to_sync_keeps_none(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(rig.topic.journaling.rewriting())
    rig.publish(b"more", defer=9)
    journal, dup, taken = rig.topic.journal, os.dup, []

    def one_left(fd: int) -> int:
        if taken:
            raise OSError(errno.EMFILE, "Too many open files")
        taken.append(dup(fd))
        return taken[0]

    monkeypatch.setattr(os, "dup", one_left)
    with pytest.raises(OSError, match="Too many open files"):
        journal.start_sync()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken[0])
    assert journal.unsynced


@pytest.mark.parametrize("number", range(8))
def test_damage_to_any_piece_of_the_snapshot_loses_nothing(rig: Rig, tmp_path: Path, number: int) -> None:
    busy(rig)
    for _ in rig.topic.journaling.rewriting():
        pass
    [name] = rig.files()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(rig.harness.path / "t", elsewhere / "t")
    data = bytearray((elsewhere / "t" / name).read_bytes())
    blocks = [at for at in range(len(data)) if data.startswith(b"NQJ1", at)]
    assert len(blocks) == 8
    data[blocks[number] + 12] ^= 0xFF
    (elsewhere / "t" / name).write_bytes(data)
    channel = rig.opened(elsewhere, ["c"]).channels["c"]
    assert channel.unfinished >= rig.channel.unfinished


def each_position(deferred: Deferred) -> range:
    return range(deferred.position, deferred.position + deferred.count)


@given(st.integers(0, 2**64).map(random.Random))
@settings(max_examples=200, deadline=None)
def test_deferred_messages_wait_for_their_channel_unless_it_has_passed_them(draw: random.Random) -> None:
    state = ChannelState(1, draw.randrange(10))
    for _ in range(draw.randrange(5)):
        start = draw.randrange(40)
        state.finish(start, start + draw.randrange(8))
    for position in draw.sample(range(40), draw.randrange(4)):
        state.requeue(position, position + 1, 2, 7)
    deferred, at = [], 0
    while at < 40:
        count = draw.randrange(1, 6)
        if draw.random() < 0.7:
            deferred.append(Deferred(at, count, 1000 + at))
        at += count
    expected: dict[int, int] = {}
    requeued = dict(state.waiting)
    passed = {each for start, end in state.passed for each in range(start, end)}
    for each in deferred:
        for position in range(max(each.position, state.position), each.position + each.count):
            if position not in passed:
                expected[position] = each.due
                passed.add(position)
    waiting = restore_deferred(state, deferred)
    found = [(position, each.due) for each in waiting for position in each_position(each)]
    assert found == sorted(expected.items())
    assert state.waiting == requeued
    assert {each for start, end in state.passed for each in range(start, end)} == passed


class Story:
    """A channel whose consumers requeue, finish and time out in runs, and a model of it."""

    def __init__(self, path: Path, draw: random.Random) -> None:
        self.rig = Rig(path)
        self.draw = draw
        self.rig.channel.remove_consumer(self.rig.reader.consumer)
        self.readers = [Reader(5 * SECOND) for _ in range(2)]
        self.attempts: dict[int, int] = {}  # of each id that is unfinished
        self.holders: dict[int, Reader] = {}  # of each id in flight
        self.rewriting: Iterator[None] | None = None
        for reader in self.readers:
            self.rig.channel.add_consumer(reader.consumer)
            self.rig.channel.set_ready(reader.consumer, draw.choice([3, 40]))

    def settle(self) -> None:
        self.rig.run()
        for reader in self.readers:
            for number, attempts, _ in reader.take():
                assert attempts == self.attempts.get(number, 0) + 1, "finished, or in flight, or not counted"
                assert number not in self.holders
                self.attempts[number] = attempts
                self.holders[number] = reader

    def publish(self) -> None:
        number = self.draw.randint(1, 20)
        self.rig.topic.publish([b"x"] * number, 0, Publisher())

    def answer(self) -> None:
        """FIN or REQ a run, of which some may be in flight elsewhere, or nowhere."""
        if not self.holders:
            return
        draw, reader, now = self.draw, self.draw.choice(self.readers), self.rig.harness.clock.now
        first = draw.choice(sorted(self.holders))
        ids = range(first, first + draw.randint(1, 15))
        mine = [number for number in ids if self.holders.get(number) is reader]
        if draw.random() < 0.4:
            missing = self.rig.channel.finish(reader.consumer, ids.start, ids.stop)
            for number in mine:
                del self.attempts[number]
        else:
            delay = draw.choice([0, 0, 0, 2 * SECOND])
            missing = self.rig.channel.requeue(reader.consumer, ids.start, ids.stop, delay, now)
        assert missing == [number for number in ids if number not in mine]
        for number in mine:
            del self.holders[number]

    def time_out(self) -> None:
        self.rig.harness.clock.now += 6 * SECOND
        self.rig.harness.look_at_timers()
        self.holders.clear()

    def want(self) -> None:
        reader = self.draw.choice(self.readers)
        self.rig.channel.set_ready(reader.consumer, self.draw.choice([0, 3, 10, 40]))

    def rewrite(self) -> None:
        """Begin a new journal, or go on with it for a step."""
        if self.draw.random() < 0.1:
            self.rig.topic.journaling.rewrite()
            self.rewriting = None
        elif self.rewriting is None:
            self.rewriting = self.rig.topic.journaling.rewriting()
        elif next(self.rewriting, "done") == "done":
            self.rewriting = None

    def check_crash(self, elsewhere: Path) -> None:
        """A process that comes after a crash owes exactly what is unfinished, with the attempts it had."""
        topic = self.rig.after_a_crash(elsewhere)
        channel, reader = topic.channels["c"], Reader()
        assert channel.depth + channel.deferred_count == self.rig.channel.unfinished
        channel.add_consumer(reader.consumer)
        channel.set_ready(reader.consumer, 10000)
        channel.queue_due(self.rig.harness.clock.now + 10 * SECOND)
        self.rig.others[-1].turn.run()
        again = {number: attempts for number, attempts, _ in reader.take()}
        assert len(again) == self.rig.channel.unfinished
        assert set(self.attempts) <= set(again), "lost"
        for number, attempts in again.items():
            known = self.attempts.get(number, 0)
            assert attempts <= known + 1
            assert attempts > 1 or number not in self.waiting(), "attempts forgotten"

    def waiting(self) -> set[int]:
        return set(self.attempts) - set(self.holders)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64).map(random.Random))
def test_a_crash_finds_runs_that_were_requeued_and_finished_as_they_were(draw: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(backlog, "SNAPSHOT_STEP", 2):
        path = Path(folder, "it")
        path.mkdir()
        story = Story(path, draw)
        steps = [story.publish, story.answer, story.answer, story.answer, story.want, story.rewrite]
        story.publish()
        story.settle()
        for step in range(40):
            draw.choice([*steps, story.rewrite, story.time_out] if step % 4 else steps)()
            story.settle()
            if step % 5 == 0:
                story.check_crash(Path(folder, str(step)))
        for harness in (story.rig.harness, *story.rig.others):
            harness.close()


# ---- the journal of an earlier process


def answered(rig: Rig) -> None:
    """Six messages, of which the second and the fourth are finished and the third is requeued."""
    rig.want(6)
    rig.publish(*[b"x"] * 6)
    got = [number for number, _, _ in rig.reader.take()]
    for number in (got[1], got[3]):
        rig.channel.finish(rig.reader.consumer, number, number + 1)
    rig.channel.requeue(rig.reader.consumer, got[2], got[2] + 1, 0, rig.harness.clock.now)
    rig.reader.consumer.ready_count = 0
    rig.run()


def test_the_journal_of_an_earlier_process_is_used_on_until_there_is_something_to_write(rig: Rig) -> None:
    answered(rig)
    for _ in range(2):
        topic = rig.after_a_crash()
        assert (state(topic), rig.files(), topic.journal.from_before) == ((4, 0), ["journal.000001"], True)
        assert not topic.journal.overgrown
    reader = Reader()
    channel = topic.channels["c"]
    channel.add_consumer(reader.consumer)
    channel.set_ready(reader.consumer, 9)
    rig.others[-1].turn.run()
    assert rig.files() == ["journal.000001"], "a delivery is not in a journal"
    for number, _, _ in reader.take()[:2]:
        channel.finish(reader.consumer, number, number + 1)
    rig.others[-1].turn.run()
    assert (rig.files(), topic.journal.from_before) == (["journal.000002"], False)
    assert state(rig.after_a_crash()) == (2, 0)


def test_what_is_published_behind_a_journal_that_is_used_on_is_delivered_after_a_crash(rig: Rig) -> None:
    answered(rig)
    topic = rig.after_a_crash()
    topic.publish([b"y"] * 3, 0.0, Publisher())
    topic.commit()
    rig.others[-1].turn.run()
    assert topic.journal.from_before
    assert state(rig.after_a_crash()) == (7, 0)
    topic.publish([b"later"], 9.0, Publisher())
    topic.commit()
    rig.others[-2].turn.run()
    assert not topic.journal.from_before, "the journal must say that it is deferred"


def test_a_journal_that_is_used_on_is_complete_when_that_is_asked_for(rig: Rig) -> None:
    answered(rig)
    topic = rig.after_a_crash()
    topic.journaling.store()
    assert (rig.files(), topic.journal.sound) == (["journal.000002"], True)
    topic = rig.after_a_crash()
    assert topic.journaling.close() is None
    assert rig.files() == ["journal.000003"]


def truncate(path: Path, size: int) -> None:
    os.truncate(path, path.stat().st_size + size)


LACKS: list[Callable[[Path], object]] = [
    lambda folder: truncate(folder / "00000000000000000000.log", -1),  # the journal knows what the log lost
    lambda folder: truncate(folder / "journal.000001", 1),  # a torn end
    lambda folder: (folder / "journal.000000").touch(),  # an older file that was not deleted
    lambda folder: (folder / "journal.000001").rename(folder / "journal.000001.t000001"),
]


@pytest.mark.parametrize("lack", LACKS)
def test_a_journal_that_lacks_something_is_begun_anew_at_once(
    rig: Rig, lack: Callable[[Path], object]
) -> None:
    answered(rig)
    finish_all(rig)
    rig.run()
    lack(rig.harness.path / "t")
    topic = rig.after_a_crash()
    assert not topic.journal.from_before
    assert len(rig.files()) == 1
    assert rig.files() > ["journal.000001.t000001"]


def test_a_journal_is_begun_anew_for_a_channel_that_it_does_not_know_and_where_it_is_large(
    rig: Rig, tmp_path: Path
) -> None:
    answered(rig)
    for _ in range(2000):
        rig.topic.journal.pump(6)
        rig.run()
        rig.topic.journaling.flush()
    assert not rig.after_a_crash(tmp_path / "copy").journal.from_before
    assert not rig.opened(rig.harness.path, ["c", "new"]).journal.from_before


def test_a_journal_whose_disk_refuses_is_tried_again(rig: Rig) -> None:
    answered(rig)
    topic = rig.after_a_crash()
    with mock.patch("os.open", side_effect=OSError(errno.ENOSPC, "full")):
        topic.channels["c"].seek(3)
        rig.others[-1].turn.run()
    assert not topic.journal.sound
    assert topic.journal.overgrown
    topic.trimming.run(0.0)
    assert topic.journal.sound
    assert rig.files() == ["journal.000003"]
