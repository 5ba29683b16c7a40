"""The end of a log: what a commit writes, keeps and tells, and that the twins agree."""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsquark import kernel
from nsquark.kernel import pure, pure_intake, pure_log

TWINS: list[tuple[Any, Any, Any]] = [(pure, pure_intake, pure_log)]
if kernel.COMPILED:
    names = ("fast", "fast_intake", "fast_log")
    TWINS.append(tuple(importlib.import_module(f"nsquark.kernel.{name}") for name in names))  # type: ignore[arg-type]

each_twin = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin[0].__name__.rpartition(".")[2])


@each_twin
@given(samples=st.lists(st.tuples(st.integers(-5, (1 << 63) - 1), st.integers(1, 1 << 30)), max_size=20))
def test_times_are_counted_whatever_they_add_up_to(twin: Any, samples: list[tuple[int, int]]) -> None:
    tally = twin[2].Tally()
    counts = [0] * 64
    for ns, count in samples:
        tally.observe(ns, count)
        counts[(ns - 1 >> 14).bit_length() if ns > 0 else 0] += count
    assert tally.counts == counts
    assert tally.count == sum(counts)
    assert tally.total_ns == sum(max(ns, 0) * count for ns, count in samples)


@each_twin
@given(
    stride=st.integers(1, 300),
    beginning=st.sampled_from([0, 0, 500]),
    sizes=st.lists(st.integers(1, 200), max_size=20),
)
def test_a_file_is_marked_once_a_stride(twin: Any, stride: int, beginning: int, sizes: list[int]) -> None:
    extent = twin[2].Extent(7, stride)
    extent.size = beginning  # of an earlier process, where that is anything, and not walked yet
    for number, size in enumerate(sizes):
        extent.written(7 + 2 * number, 2, size)
    assert (extent.size, extent.end) == (beginning + sum(sizes), 7 + 2 * len(sizes))
    if beginning:
        assert (extent.marks, extent.marked_to) == ([], 0)
        return
    marks: list[tuple[int, int]] = []
    offset = 0
    for number, size in enumerate(sizes):
        if not marks or offset - marks[-1][1] >= stride:
            marks.append((7 + 2 * number, offset))
        offset += size
    assert (extent.marks, extent.marked_to) == (marks, offset)


def log_of(
    twin: Any,
    *,
    max_bytes_per_file: int = 10**6,
    max_messages: int = 10**6,
    max_bytes: int = 10**6,
    fd: int = -1,
) -> Any:
    """A LogEnd that says what it asks for, and begins another segment in the same file."""
    fast, _, log_end = twin

    class Log(log_end.LogEnd):  # type: ignore[misc]
        def make_room(self, size: int) -> None:
            self.calls.append(f"room for {size}")
            self.torn = False
            self.segments.append(log_end.Extent(self.end, 1000))

        def undo(self) -> None:
            self.calls.append("undo")
            self.torn = True

        def shorten(self) -> None:
            self.calls.append("shorten")
            super().shorten()

    log = Log(max_bytes_per_file, max_messages, max_bytes)
    log.calls = []
    log.first = log.end = 5
    log.writer = fast.BatchWriter(5, 100)
    log.fd = fd
    if fd >= 0:
        log.segments.append(log_end.Extent(5, 1000))
    return log


def seen(log: Any) -> object:
    numbers = {id(segment): number for number, segment in enumerate(log.segments)}
    return (
        log.calls,
        (log.first, log.end, log.unsynced, log.torn, log.chunk_bytes),
        (log.writer.count, log.writer.position, log.writer.next_id),
        [(each.size, each.end, each.marks, each.marked_to) for each in log.segments],
        [
            (each.position, each.end, each.data, numbers.get(id(each.segment)), each.offset)
            for each in log.chunks
        ],
    )


@pytest.mark.skipif(len(TWINS) < 2, reason="the compiled kernel is not in use")
@settings(max_examples=100)
@given(
    commits=st.lists(
        st.tuples(
            st.lists(st.binary(max_size=60), max_size=4),
            st.sampled_from(["good", "good", "pieces", "refused"]),
        ),
        max_size=12,
    ),
    on_disk=st.booleans(),
    looked_for=st.integers(0, 60),
    max_bytes=st.sampled_from([300, 10**6]),
)
def test_the_twins_commit_alike(
    commits: list[tuple[list[bytes], str]], on_disk: bool, looked_for: int, max_bytes: int
) -> None:
    real = os.write

    def pieces(fd: int, data: Any) -> int:
        return real(fd, memoryview(data)[:50])

    def refused(fd: int, data: Any) -> int:
        real(fd, memoryview(data)[:10])
        raise OSError(28, "No space left on device")

    results = []
    for twin in TWINS:
        with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
            fd = file.fileno() if on_disk else -1
            log = log_of(twin, max_bytes_per_file=400, max_messages=8, max_bytes=max_bytes, fd=fd)
            outcomes: list[object] = []
            for bodies, write in commits:
                patch.setattr(os, "write", {"good": real, "pieces": pieces, "refused": refused}[write])
                if bodies:
                    log.writer.add_bodies(bodies, 1, 0)
                try:
                    outcomes.append(log.commit())
                except OSError as error:
                    outcomes.append(str(error))
            found = log.chunk_at(looked_for)
            file.seek(0)
            results.append((seen(log), outcomes, found and found.position, file.read()))
    assert results[0] == results[1]


@each_twin
def test_a_closed_log_stores_nothing(twin: Any) -> None:
    with tempfile.TemporaryFile() as file:
        log = log_of(twin, fd=file.fileno())
        log.fd = -1
        log.writer.add_bodies([b"one"], 1, 0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            log.commit()
    assert (log.end, log.chunks, log.writer.count) == (5, [], 0)


class Told:
    def __init__(self) -> None:
        self.settled: list[str | None] = []

    def settle(self, reason: str | None) -> None:
        self.settled.append(reason)


class Rig:
    """A topic that is nothing but a Committer."""

    def __init__(self, twin: Any, sync_every: int = 1000) -> None:
        _, intake, log_end = twin
        calls = self.calls = []
        self.watchers: list[int] = []

        class Topic(log_end.Committer):  # type: ignore[misc]
            def stored(self, first: int, receipts: list[Any]) -> None:
                calls.append(("stored", first, receipts))

            def failed(self, error: OSError, first: int, receipts: list[Any]) -> None:
                calls.append(("failed", first, receipts))

        self.topic = Topic(lambda: 1000 + (5 << 20), log_end.Tally(), ({}, self.watchers), sync_every)
        self.topic.log = log_of(twin)
        self.topic.intake = intake.Intake(
            self.topic.log.writer, lambda: None, self.topic.commit, 10**6, 10**6
        )

    def publish(self, *bodies: bytes) -> Told:
        receipt = Told()
        size = self.topic.log.writer.add_bodies(bodies, 1, 0)
        self.topic.intake.added(receipt, size, 1000)
        return receipt


@each_twin
def test_publishers_are_answered_when_it_is_stored(twin: Any) -> None:
    rig = Rig(twin)
    rig.topic.active = False
    receipts = [rig.publish(b"one", b"two"), rig.publish(b"three")]
    assert [each.settled for each in receipts] == [[], []]
    rig.topic.commit()
    rig.topic.commit()  # nothing more
    assert [each.settled for each in receipts] == [[None], [None]]
    assert rig.calls == []
    topic = rig.topic
    assert (topic.message_count, topic.message_bytes, topic.active, topic.log.end) == (3, 11, True, 8)
    assert (topic.publish_times.count, topic.publish_times.total_ns) == (3, 3 * (5 << 20))


@each_twin
def test_others_hear_of_it_where_there_are_any(twin: Any) -> None:
    rig = Rig(twin, sync_every=3)
    rig.publish(b"one")
    rig.topic.commit()
    rig.watchers.append(1)
    receipt = rig.publish(b"two")
    rig.topic.commit()
    rig.watchers.clear()
    assert rig.calls.pop() == ("stored", 6, [receipt])
    assert receipt.settled == []  # that is left to them
    rig.publish(b"three")
    rig.topic.commit()
    assert rig.calls.pop()[:2] == ("stored", 7)  # three are not synced
    rig.topic.syncs_soon = True
    receipt = rig.publish(b"four")
    rig.topic.commit()
    assert (rig.calls, receipt.settled) == ([], [None])


@each_twin
def test_a_commit_that_fails_counts_nothing(twin: Any) -> None:
    rig = Rig(twin)
    rig.topic.log.segments.append(twin[2].Extent(5, 1000))  # and no descriptor
    receipt = rig.publish(b"one")
    rig.topic.commit()
    assert rig.calls == [("failed", 5, [receipt])]
    assert (rig.topic.message_count, rig.topic.publish_times.count, rig.topic.intake.receipts) == (0, 0, [])


@each_twin
def test_nothing_is_stored_at_the_end_of_a_topic(twin: Any) -> None:
    rig = Rig(twin)
    receipt = rig.publish(b"one")
    rig.topic.exiting = True
    rig.topic.commit()
    assert (rig.topic.log.end, receipt.settled, rig.topic.intake.receipts) == (5, [], [receipt])


# ---- reading it


@pytest.mark.skipif(len(TWINS) < 2, reason="the compiled kernel is not in use")
@given(
    commits=st.lists(
        st.lists(st.tuples(st.binary(max_size=30), st.sampled_from([0, 0, 0, 9])), min_size=1, max_size=5)
    ),
    steps=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([40, 100, 10**6])), max_size=12),
    skipped=st.integers(0, 5),
    first=st.integers(5, 8),
)
def test_the_twins_read_alike(
    commits: list[list[tuple[bytes, int]]], steps: list[tuple[int, int]], skipped: int, first: int
) -> None:
    results = []
    for twin in TWINS:
        log = log_of(twin)
        for number, commit in enumerate(commits):
            for body, due in commit:
                log.writer.add_bodies([body], 1000 + number, due)
            log.commit()
        log.first = first  # what lies before is not to be read any more, though it is in memory
        cursor = twin[2].LogCursor(log, 5 + skipped)
        seen: list[object] = []
        for want, max_bytes in steps:
            run = cursor.take(want, max_bytes)
            if run is not None:
                frames = bytes(run.frames)
                seen.append((run.position, run.count, run.first_id, frames, run.due, run.published))
            seen.append((cursor.position, cursor.at, cursor.base, cursor.remaining))
        results.append(seen)
    assert results[0] == results[1]


# ---- the journal


RECORDS = st.one_of(
    st.tuples(
        st.just("finish"),
        st.integers(0, 2),
        st.sampled_from([0, 1, 2, 3, 1 << 40]),
        st.sampled_from([0, 1, 2, 1 << 33]),
    ),
    st.tuples(st.just("add"), st.binary(max_size=9)),
    st.sampled_from([("block",), ("drop",), ("flush",), ("refused",)]),
)


@pytest.mark.skipif(len(TWINS) < 2, reason="the compiled kernel is not in use")
@given(st.lists(RECORDS))
def test_the_twins_write_the_same_journal(steps: list[tuple[Any, ...]]) -> None:
    results = []
    for twin in TWINS:

        class Journal(twin[2].Records):  # type: ignore[misc]
            undone = 0

            def undo(self) -> None:
                self.undone += 1

        with tempfile.TemporaryFile() as file:
            journal, seen = Journal(), []
            journal.fd = file.fileno()
            for name, *args in steps:
                if name == "finish":
                    number, start, count = args
                    journal.finish(number, start, start + count)
                elif name == "refused":
                    journal.fd = os.open("/dev/full", os.O_WRONLY)
                    try:
                        journal.flush()
                    except OSError as error:
                        seen.append(error.errno)
                    finally:
                        os.close(journal.fd)
                        journal.fd = file.fileno()
                else:
                    seen.append(getattr(journal, name)(*args))
                seen.append((journal.dirty, journal.size, journal.unsynced, journal.undone))
            file.seek(0)
            results.append((seen, file.read()))
    assert results[0] == results[1]
