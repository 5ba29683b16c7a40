"""Topics and channels without an event loop: the clock is set, the turn is run, the disk is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from nsquark import kernel
from nsquark.errors import LogDamaged
from nsquark.kernel import Buffer
from nsquark.log import Segment
from nsquark.names import is_ephemeral
from nsquark.nsqd.core.consumer import Consumer
from nsquark.nsqd.core.dead_letters import DeadLetters
from nsquark.nsqd.core.topic import Topic
from nsquark.nsqd.core.turn import Turn
from nsquark.nsqd.options import Options
from nsquark.nsqd.stats.health import WRITE, Health, Thing
from nsquark.nsqd.storage.node import Node

SECOND = 1_000_000_000


class Clock:
    """Counts from the epoch, and can be set back; `monotonic` cannot."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND
        self.set_back = 0

    def __call__(self) -> int:
        return self.now - self.set_back

    def monotonic(self) -> int:
        return self.now


def refuse_commits(patch: pytest.MonkeyPatch, topic: Topic, error: OSError) -> None:
    """Have the disk refuse every write to the log of this topic."""
    real = os.write

    def write(fd: int, data: Buffer) -> int:
        if topic.log.files is not None and fd == topic.log.files.fd:
            raise error
        return real(fd, data)

    patch.setattr(os, "write", write)


class InlineSyncer:
    """fsync without a thread."""

    def request(self, topic: Topic) -> None:
        sync = topic.log.start_sync()
        sync.run(lambda fd: None)
        topic.log.finish_sync(sync)
        for fd in topic.journal.start_sync()[0]:
            os.close(fd)
        for receipt in topic.take_receipts():
            receipt.settle(None)

    def sync_then_delete(
        self, fd: int, path: Path, stale: Sequence[Path], done: Callable[[OSError | None], None]
    ) -> None:
        os.close(fd)
        for each in stale:
            each.unlink(missing_ok=True)
        done(None)

    def run_then(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        try:
            with patch("os.fsync"):  # the plug is not pulled
                work()
        except OSError as error:
            done(error)
        else:
            done(None)

    def delete(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


class InlineReads:
    """Reading without threads. `index` waits until `finish`, as it would for the disk."""

    def __init__(self) -> None:
        self.indexing: list[tuple[Segment, Callable[[Exception | None], None]]] = []

    def index(self, segment: Segment, who: object, then: Callable[[Exception | None], None]) -> None:
        self.indexing.append((segment, then))

    def finish(self) -> None:
        indexing, self.indexing = self.indexing, []
        for segment, then in indexing:
            try:
                segment.verify()
            except LogDamaged as error:
                then(error)
            else:
                then(None)

    async def run(self, work: Callable[[], Any]) -> Any:
        return work()


class ManualTimers:
    """Keeps the times; `due` wakes those that they have come for."""

    def __init__(self) -> None:
        self.waiting: dict[Any, int] = {}

    def schedule(self, timed: Any, when: int) -> None:
        self.waiting[timed] = min(when, self.waiting.get(timed, when))

    def cancel(self, timed: Any) -> None:
        self.waiting.pop(timed, None)

    def due(self, now: int) -> None:
        for timed in [each for each, when in self.waiting.items() if when <= now]:
            del self.waiting[timed]
            timed.wake(now)


class Harness:
    """What a broker is to its topics."""

    def __init__(self, path: Path, clock: Clock, **changes: object) -> None:
        self.options = Options()
        for name, value in changes.items():
            setattr(self.options, name, value)
        self.clock = clock
        self.node = Node(path, 5)
        self.turn = Turn(lambda callback: None, clock, clock.monotonic)
        self.timers: Any = ManualTimers()
        self.due_timers: Any = ManualTimers()
        self.syncer: Any = InlineSyncer()
        self.health = Health(self._problems_changed)
        self.problems = self.health.problems
        self.reads: Any = InlineReads()
        self.dead_letters = DeadLetters(self)
        self.loop: Any = None
        self.gate: Any = None
        self.segment_store: Any = None
        self.path = path
        self.topics: dict[str, Topic] = {}
        self.reasons: list[str] = []
        self.deleted: list[str] = []
        self.grown: list[str] = []  # topics whose files had better be trimmed

    def healthy(self, what: Thing = WRITE) -> None:
        self.health.works(what)

    def unhealthy(self, reason: str, what: Thing = WRITE) -> None:
        self.health.failed(what, reason)
        self.reasons.append(reason)

    def _problems_changed(self) -> None:
        for topic in self.topics.values():
            topic.problems_changed()

    def changed(self, ephemeral: bool) -> None:
        pass

    def announce(self, topic: str, channel: str = "") -> None:
        pass

    def trim_files(self, topic: Topic) -> None:
        self.grown.append(topic.name)

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            directory = None if is_ephemeral(name) else self.path / name
            self.topics[name] = Topic(self, name, directory)
            self.topics[name].journaling.rewrite()
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        self.deleted.append(name)

    def close(self) -> None:
        """Let go of the files of its topics, as the end of a process would."""
        for topic in self.topics.values():
            topic.log.close(sync=False)
            topic.journal.close(sync=False)

    def pass_time(self, ns: int) -> None:
        self.clock.now += ns
        self.look_at_timers()
        self.turn.run()

    def look_at_timers(self) -> None:
        self.timers.due(self.clock.monotonic())
        self.due_timers.due(self.clock())


class Publisher:
    """Counts its receipts."""

    def __init__(self) -> None:
        self.settled: list[str | None] = []

    def settle(self, reason: str | None) -> None:
        self.settled.append(reason)


class Reader:
    """A consumer that takes frames apart: (id, attempts, body)."""

    def __init__(self, msg_timeout_ns: int = 60 * SECOND, sample_rate: int = 0) -> None:
        self.got: list[tuple[int, int, bytes]] = []
        self.closed = False
        send: Callable[[kernel.Buffer], None] = self._take
        self.consumer = Consumer(self, send, msg_timeout_ns, sample_rate)  # type: ignore[arg-type]

    def abort(self) -> None:
        self.closed = True

    def _take(self, frames: kernel.Buffer) -> None:
        begin = 0
        for end in kernel.frame_ends(frames):
            frame = bytes(frames[begin:end])
            self.got.append((int(frame[18:34], 16), int.from_bytes(frame[16:18], "big"), frame[34:]))
            begin = end

    def take(self) -> list[tuple[int, int, bytes]]:
        got, self.got = self.got, []
        return got
